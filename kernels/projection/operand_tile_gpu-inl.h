// Device code: moves a tile of x and of weights from memory to LDS, with the feature as the slow index.
//
// In LDS x is [kDepth][kRows], followed by the weights [kDepth][kOutputs], without gaps. Every few features, rows are
// swapped 8 to 24 apart and outputs 16, so that a wave's simultaneous stores go to different banks.
// Thread safety: all lanes of the team make the same calls; the caller places the barriers.
//
//   using T = OperandTile</*lanes=*/128, /*rows=*/128, /*outputs=*/64, /*depth=*/16>;
//   OperandMover<Weights, /*kVector=*/true, DType::kBF16, T> mover(p, m, lane, first_row, first_output);
//   mover.Load(feature);
//   mover.Store(lds, at);
//   MultiplyStep<T, /*kSpanRows=*/32, /*kSpanOutputs=*/16>(lds, at, row, output, sum);
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/gpu/device.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/thread_tile-inl.h"
#include "kernels/projection/weight_vectors-inl.h"

namespace gdn::gpu {

template <int kTeamLanes, int kTileRows, int kTileOutputs, int kTileDepth>
struct OperandTile {
  static constexpr int kLanes = kTeamLanes;
  static constexpr int kRows = kTileRows;
  static constexpr int kOutputs = kTileOutputs;
  static constexpr int kDepth = kTileDepth;
  static constexpr int kFloats = kDepth * (kRows + kOutputs);
  // Numbers of neighbouring lanes that together load one row of x (kQuads), or one output's weights (kVectors).
  static constexpr int kQuads = kDepth / 4;
  static constexpr int kVectors = kDepth / kWeightVector;
  // Loads per lane and step: of four elements of x (kXLoads), of eight weights (kWLoads).
  static constexpr int kXLoads = kRows * kQuads / kLanes;
  static constexpr int kWLoads = kOutputs * kVectors / kLanes;
  static_assert(kXLoads * kLanes == kRows * kQuads && kWLoads * kLanes == kOutputs * kVectors);
  static_assert(kRows % 16 == 0 && kOutputs % 32 == 0 && kVectors <= 2);

  // Return the position in LDS, in floats from the tile's start, of a feature of row (XAt) or output (WAt) `at +
  // further` of the tile. Four neighbours from a multiple of four on are adjacent. `further` is a compile-time constant
  // that has none of the bits of `at`. It is a multiple of kSpan, a power of two, or bits above it if kSpan is 32 or
  // more. So most addresses differ by a constant only.
  template <int kSpan>
  __device__ __forceinline__ static constexpr int XAt(int feature, int at, int further) {
    return feature * kRows + Swapped<kSpan>(at, further, RowSwap(feature));
  }
  template <int kSpan>
  __device__ __forceinline__ static constexpr int WAt(int feature, int at, int further) {
    return kDepth * kRows + feature * kOutputs + Swapped<kSpan>(at, further, OutputSwap(feature));
  }

 private:
  template <int kSpan>
  __device__ __forceinline__ static constexpr int Swapped(int at, int further, int swap) {
    static_assert((kSpan & (kSpan - 1)) == 0);
    return (at ^ swap % kSpan) + (further ^ swap / kSpan * kSpan);
  }
  __device__ __forceinline__ static constexpr int RowSwap(int feature) { return feature / 4 * (32 / kQuads) % kRows; }
  __device__ __forceinline__ static constexpr int OutputSwap(int feature) { return feature / kWeightVector * 16; }
};

// A lane's part of x in a step of kDepth features: Load reads it from memory, Store writes it to LDS as float32. Rows
// that do not exist are copies of the last one. kVector: rows allow LoadRaw4's vectors. kX: the dtype that x is loaded
// as, of the same size as `dtype`, which it is widened from.
template <bool kVector, DType kX, typename T>
class XMover {
 public:
  __device__ __forceinline__ XMover(const ProjectionArgs& p, int lane, int64_t first_row, DType dtype)
      : features_(p.features), row_(lane / T::kQuads), quad_(lane % T::kQuads * 4), dtype_(dtype) {
    const auto* x = static_cast<const Element*>(p.x);
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int64_t row = first_row + row_ + i * kRowStep;
      rows_[i] = x + (row < p.rows ? row : p.rows - 1) * p.x_stride + quad_;
    }
  }

  __device__ __forceinline__ void Load(int32_t feature) {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      x_[i] = LoadRaw4(rows_[i], kX, feature, features_ - feature - quad_, kVector);
    }
  }

  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int x = at + T::template XAt<kRowStep>(quad_, row_, i * kRowStep);
      const Vec4 wide = WidenRaw4(x_[i], dtype_);
      lds[x] = wide.x;
      lds[x + T::kRows] = wide.y;
      lds[x + 2 * T::kRows] = wide.z;
      lds[x + 3 * T::kRows] = wide.w;
    }
  }

 private:
  static constexpr int kRowStep = T::kLanes / T::kQuads;
  using Element = std::conditional_t<kX == DType::kF32, float, uint16_t>;

  const int32_t features_;
  const int row_, quad_;
  const DType dtype_;
  const Element* rows_[T::kXLoads];
  Vec4 x_[T::kXLoads];
};

// Moves a lane's part of x and of the weights, kDepth features (a step) at a time. Rows and outputs of T that do not
// exist are copies of the last one; discard their results. kVector: as AllowsVectors. kX: dtype of x. It does not use
// XMover: by mi50_model.py the compiler's order of loads then takes 7% longer.
template <typename Weights, bool kVector, DType kX, typename T>
class OperandMover {
 public:
  __device__ __forceinline__ OperandMover(const ProjectionArgs& p, const ProjectionMatrix& m, int lane,
                                          int64_t first_row, int32_t first_output)
      : features_(p.features),
        row_(lane / T::kQuads),
        quad_(lane % T::kQuads * 4),
        output_(lane / T::kVectors),
        vector_(lane % T::kVectors * kWeightVector) {
    Aim(p, m, first_row, first_output);
  }

  // Moves another tile from the next Load on.
  __device__ __forceinline__ void Aim(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                      int32_t first_output) {
    const auto* x = static_cast<const XElement*>(p.x);
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int64_t row = first_row + row_ + i * kRowStep;
      x_rows_[i] = x + (row < p.rows ? row : p.rows - 1) * p.x_stride + quad_;
    }
    const auto* weights = static_cast<const typename Weights::Element*>(m.weight);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int32_t output = first_output + output_ + i * kOutputStep;
      const int32_t row = output < m.outputs ? output : m.outputs - 1;
      weights_[i] = weights + int64_t{row} * p.features + vector_;
      if constexpr (kScaled<Weights>) inverses_[i] = InverseOf(m.scales[row]);
    }
  }

  // Loads features [feature, feature + kDepth) of the lane's rows and outputs into registers; zeros past the last.
  __device__ __forceinline__ void Load(int32_t feature) {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      x_[i] = LoadRaw4(x_rows_[i], kX, feature, features_ - feature - quad_, kVector);
    }
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      w_[i] = LoadEight<Weights, kVector>(weights_[i] + feature, features_ - feature - vector_);
    }
  }

  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int x = at + T::template XAt<kRowStep>(quad_, row_, i * kRowStep);
      const Vec4 wide = WidenRaw4(x_[i], kX);
      lds[x] = wide.x;
      lds[x + T::kRows] = wide.y;
      lds[x + 2 * T::kRows] = wide.z;
      lds[x + 3 * T::kRows] = wide.w;
    }
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int w = at + T::template WAt<kOutputStep>(vector_, output_, i * kOutputStep);
      float wide[kWeightVector];
      WidenScaled<Weights>(w_[i], kScaled<Weights> ? inverses_[i] : 1.0f, wide);
#pragma unroll
      for (int j = 0; j < kWeightVector; ++j) lds[w + j * T::kOutputs] = wide[j];
    }
  }

 private:
  static constexpr int kRowStep = T::kLanes / T::kQuads;
  static constexpr int kOutputStep = T::kLanes / T::kVectors;
  using XElement = std::conditional_t<kX == DType::kF32, float, uint16_t>;

  const int32_t features_;
  const int row_, quad_, output_, vector_;
  const XElement* x_rows_[T::kXLoads];
  const typename Weights::Element* weights_[T::kWLoads];
  float inverses_[T::kWLoads];  // ScaledHalves only
  Vec4 x_[T::kXLoads];
  typename Weights::Raw w_[T::kWLoads];
};

// Adds to a lane's sums the products of the tiles of x and w at `at` in LDS, in the order of features; with kPairs they
// are pairs of features. sum[4 i + j] is
// row `row` + i * kSpanRows + j of the tile, with j < 4; outputs likewise, from `output` + i * kSpanOutputs on.
template <typename T, int kSpanRows, int kSpanOutputs, bool kPairs = false, typename Lds, int kThreadRows,
          int kThreadOutputs>
__device__ __forceinline__ void MultiplyStep(Lds& lds, int at, int row, int output,
                                             float (&sum)[kThreadRows][kThreadOutputs]) {
#pragma unroll
  for (int d = 0; d < T::kDepth; ++d) {
    Vec4 w[kThreadOutputs / 4];
#pragma unroll
    for (int i = 0; i < kThreadOutputs / 4; ++i) {
      w[i] = lds.Load4(at + T::template WAt<kSpanOutputs>(d, output, i * kSpanOutputs));
    }
#pragma unroll
    for (int i = 0; i < kThreadRows / 4; ++i) {
      AddOuters<kPairs>(sum, i * 4, lds.Load4(at + T::template XAt<kSpanRows>(d, row, i * kSpanRows)), w);
    }
  }
}

// Host code: calls function(std::integral_constant<DType, dtype>()) for F32, F16 or BF16, and returns its result.
template <typename Function>
auto WithXDType(DType dtype, Function&& function) {
  if (dtype == DType::kBF16) return function(std::integral_constant<DType, DType::kBF16>());
  if (dtype == DType::kF16) return function(std::integral_constant<DType, DType::kF16>());
  return function(std::integral_constant<DType, DType::kF32>());
}

}  // namespace gdn::gpu
