// Device code: adds the sums of a block's waves, each of a group of features of its own, in the groups' order.
//
// The exchange goes through LDS, T::kExchangeRows of a thread's rows at a time. A tile T has
//   kThreads, kWaves                 of the block
//   kThreadRows, kThreadOutputs      results of a lane; rows are four neighbours in each 4 kLaneRows rows
//   kLaneRows, kOutputs, kSpan       lanes down, outputs of the tile, and outputs between a lane's fours
//   kExchangeRows, kExchange         rows of a lane, and floats of LDS for each wave, in an exchange
//   kExchangeResults                 results of an exchange that a thread adds
//   ExchangeAt(lane_row, output)     place of an output in an exchanged row of lanes
// Thread safety: all lanes of the block make the same calls.
//
//   WaveSums<T> total;
//   total.Add(s.floats, wave, lane_row, lane_column, sum);
//   total.Store(p, m, first_row, first_output);
#pragma once

#include <cstdint>

#include "kernels/gpu/device.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/half_inputs_gpu-inl.h"
#include "kernels/projection/projection_args.h"

namespace gdn::gpu {

// kPairs: of pairs of fp16 numbers. Results are multiplied by the inverse of their output's scale.
template <typename T, bool kPairs = false>
class WaveSums {
 public:
  __device__ __forceinline__ WaveSums() {
#pragma unroll
    for (auto& results : total_) {
#pragma unroll
      for (float& result : results) result = 0.0f;
    }
  }

  // Adds the waves' sums of a round. A wave without a group has zeros, because all loads are under way at once only if
  // none is conditional. (A total is never -0, so they do not change it.) Ends with a barrier.
  template <typename Lds>
  __device__ __forceinline__ void Add(Lds& lds, int wave, int lane_row, int lane_column,
                                      const float (&sum)[T::kThreadRows][T::kThreadOutputs]) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int first = 0; first < T::kThreadRows; first += T::kExchangeRows) {
      SyncThreads();
#pragma unroll
      for (int i = 0; i < T::kExchangeRows; ++i) {
        const float(&row)[T::kThreadOutputs] = sum[first + i];
        const int lanes = ((wave * T::kExchangeRows + i) * T::kLaneRows + lane_row) * T::kOutputs;
#pragma unroll
        for (int j = 0; j < T::kThreadOutputs; j += 4) {
          lds.Store4(lanes + T::ExchangeAt(lane_row, lane_column + j / 4 * T::kSpan),
                     {row[j], row[j + 1], row[j + 2], row[j + 3]});
        }
      }
      SyncThreads();
#pragma unroll
      for (int r = 0; r < T::kExchangeResults; ++r) {
        const int result = r * T::kThreads + thread;
        const int from = T::ExchangeAt(result / T::kOutputs % T::kLaneRows, result);
#pragma unroll
        for (int w = 0; w < T::kWaves; ++w) {
          total_[first / T::kExchangeRows][r] += lds[w * T::kExchange + from];
        }
      }
    }
    SyncThreads();
  }

  // Writes the totals to T::kRows * T::kOutputs floats, or reads what another block wrote there.
  __device__ __forceinline__ void Keep(float* to) const {
    to += threadIdx.x;
#pragma unroll
    for (const auto& results : total_) {
#pragma unroll
      for (const float result : results) {
        *to = result;
        to += T::kThreads;
      }
    }
  }
  __device__ __forceinline__ void Resume(const float* from) {
    from += threadIdx.x;
#pragma unroll
    for (auto& results : total_) {
#pragma unroll
      for (float& result : results) {
        result = LoadFromBlocks(from);
        from += T::kThreads;
      }
    }
  }

  // Stores the results of the tile of rows from first_row and outputs from first_output on that exist.
  __device__ __forceinline__ void Store(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                        int32_t first_output) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int first = 0; first < T::kThreadRows; first += T::kExchangeRows) {
#pragma unroll
      for (int r = 0; r < T::kExchangeResults; ++r) {
        const int32_t output = first_output + (r * T::kThreads + thread) % T::kOutputs;
        const int result = (r * T::kThreads + thread) / T::kOutputs;  // [kExchangeRows][kLaneRows]
        const int i = first + result / T::kLaneRows;
        const int64_t row = first_row + i / 4 * 4 * T::kLaneRows + result % T::kLaneRows * 4 + i % 4;
        if (row < p.rows && output < m.outputs) {
          float total = total_[first / T::kExchangeRows][r];
          if constexpr (kPairs) total = OutputOf(total, m.scales[output]);
          StoreElement(m.y, m.y_dtype, row * m.y_stride + output, total);
        }
      }
    }
  }

 private:
  // Totals of result `thread` + kThreads r of each exchange.
  float total_[T::kThreadRows / T::kExchangeRows][T::kExchangeResults];
};

}  // namespace gdn::gpu
