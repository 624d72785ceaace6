// Device code: moves a tile of x and of weights to LDS as pairs of fp16 numbers.
//
// In LDS x is [kDepth][kRows], followed by the weights [kDepth][kOutputs], as in operand_tile_gpu-inl.h, but of words
// with two features each. x comes from HalveRowsKernel, weights are ScaledHalves. Every four words, outputs are swapped
// 16 apart, so that a wave's simultaneous stores go to different banks.
// Thread safety: all lanes of the team make the same calls; the caller places the barriers.
//
//   using T = HalfOperandTile</*lanes=*/64, /*rows=*/64, /*outputs=*/64, /*depth=*/8>;
//   HalfMover</*kVector=*/true, T> mover(p, m, lane, first_row, first_output);
//   mover.Load(feature);  // a multiple of 2 * kDepth
//   mover.Store(lds, at);
#pragma once

#include <cstdint>

#include "kernels/gpu/device.h"
#include "kernels/projection/half_inputs_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/weight_vectors-inl.h"

namespace gdn::gpu {

template <int kTeamLanes, int kTileRows, int kTileOutputs, int kTileDepth>
struct HalfOperandTile {
  static constexpr int kLanes = kTeamLanes;
  static constexpr int kRows = kTileRows;
  static constexpr int kOutputs = kTileOutputs;
  static constexpr int kDepth = kTileDepth;  // words
  static constexpr int kFloats = kDepth * (kRows + kOutputs);
  static constexpr int kVectorWords = kWeightVector / 2;
  static constexpr int kVectors = kDepth / kVectorWords;  // neighbouring lanes that together load one output's weights
  // Loads per lane and step: of a word of four rows (kXLoads), of eight weights (kWLoads).
  static constexpr int kXLoads = kRows / 4 * kDepth / kLanes;
  static constexpr int kWLoads = kOutputs * kVectors / kLanes;
  static_assert(kXLoads * kLanes * 4 == kRows * kDepth && kWLoads * kLanes == kOutputs * kVectors);
  static_assert(kRows % 4 == 0 && kOutputs % 32 == 0 && kHalfPairs % kDepth == 0);

  // Places of words, as OperandTile has them.
  template <int kSpan>
  __device__ __forceinline__ static constexpr int XAt(int word, int at, int further) {
    return word * kRows + at + further;
  }
  template <int kSpan>
  __device__ __forceinline__ static constexpr int WAt(int word, int at, int further) {
    static_assert((kSpan & (kSpan - 1)) == 0);
    const int swap = word / kVectorWords * 16 % 32;
    return kDepth * kRows + word * kOutputs + (at ^ swap % kSpan) + (further ^ swap / kSpan * kSpan);
  }
};

// A lane's part of x and of the weights. Rows that do not exist have any values, outputs are copies of the last one;
// discard their results.
template <bool kVector, typename T>
class HalfMover {
 public:
  __device__ __forceinline__ HalfMover(const ProjectionArgs& p, const ProjectionMatrix& m, int lane, int64_t first_row,
                                       int32_t first_output)
      : features_(p.features),
        pitch_(static_cast<uint32_t>(p.halves.pitch)),
        first_row_(static_cast<uint32_t>(first_row)),
        words_(p.halves.words),
        output_(lane / T::kVectors),
        vector_(lane % T::kVectors * kWeightVector),
        lane_(lane) {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int quad = lane + i * T::kLanes;
      x_at_[i] =
          (static_cast<uint32_t>(quad / (T::kRows / 4)) * pitch_ + RowsAt(quad % (T::kRows / 4) * 4)) * sizeof(float);
    }
    const auto* weights = static_cast<const uint16_t*>(m.weight);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int32_t wanted = first_output + output_ + i * kOutputStep;
      weights_[i] = weights + int64_t{wanted < m.outputs ? wanted : m.outputs - 1} * p.features + vector_;
    }
  }

  // Loads features [feature, feature + 2 kDepth) of the lane's rows and outputs into registers. Past the last group of
  // features, x keeps any values; discard the sums.
  __device__ __forceinline__ void Load(int32_t feature) {
    const char* const group =
        reinterpret_cast<const char*>(words_) + uint64_t{WordAt(feature) * pitch_} * sizeof(float);
    if (feature < features_) {
#pragma unroll
      for (int i = 0; i < T::kXLoads; ++i) x_[i] = Load4(reinterpret_cast<const float*>(group + x_at_[i]));
    }
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      w_[i] = LoadEight<ScaledHalves, kVector>(weights_[i] + feature, features_ - feature - vector_);
    }
  }

  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) lds.Store4(at + (lane_ + i * T::kLanes) * 4, x_[i]);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int w = at + T::template WAt<kOutputStep>(vector_ / 2, output_, i * kOutputStep);
      float words[T::kVectorWords];
      Unpack4(w_[i].bits, words);
#pragma unroll
      for (int j = 0; j < T::kVectorWords; ++j) lds[w + j * T::kOutputs] = words[j];
    }
  }

  // Loads the inverse scales of the group that begins at `feature`, of the tile's rows [row, row + 4).
  __device__ __forceinline__ Vec4 LoadInverses(int32_t feature, int row) const {
    const uint32_t word = WordAt(feature < features_ ? feature : 0) + kHalfPairs;
    return Load4(words_ + (word * pitch_ + RowsAt(row)));
  }

 private:
  static constexpr int kOutputStep = T::kLanes / T::kVectors;
  static_assert(kHalfWords == kHalfPairs + 1 && kHalfGroup == 64);

  // Number of the word with `feature` and the next feature: a row of pitch_ of them. The workspace has fewer than 2^32.
  __device__ __forceinline__ static uint32_t WordAt(int32_t feature) {
    return (static_cast<uint32_t>(feature) >> 1) + (static_cast<uint32_t>(feature) >> 6);
  }
  // Place of four rows of the tile in such a row of words; of the last four if they do not exist.
  __device__ __forceinline__ uint32_t RowsAt(int row) const {
    const uint32_t at = first_row_ + static_cast<uint32_t>(row);
    return at < pitch_ ? at : pitch_ - 4;
  }

  const int32_t features_;
  const uint32_t pitch_, first_row_;
  const float* const words_;
  const int output_, vector_, lane_;
  uint32_t x_at_[T::kXLoads];
  const uint16_t* weights_[T::kWLoads];
  Vec4 x_[T::kXLoads] = {};
  ScaledHalves::Raw w_[T::kWLoads];
};

}  // namespace gdn::gpu
