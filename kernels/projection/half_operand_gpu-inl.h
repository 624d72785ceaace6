// Device code: moves a tile of x and of weights to LDS as pairs of fp16 numbers.
//
// In LDS x is [kDepth][kRows], followed by the weights [kDepth][kOutputs], as in operand_tile_gpu-inl.h, but of words
// with two features each. x comes from HalveRowsKernel. Weights are ScaledHalves, or the integers of a quantised
// matrix; then the numbers of their block follow (HalfBlockTile). Every four words, outputs are swapped 16 apart, so
// that a wave's simultaneous stores go to different banks.
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
#include "kernels/projection/integer_weights_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/quantised_operand_gpu-inl.h"
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

// A lane's part of x. Rows that do not exist have any values; discard their results.
template <typename T>
class HalfXMover {
 public:
  __device__ __forceinline__ HalfXMover(const ProjectionArgs& p, int lane, int64_t first_row)
      : features_((p.features + kHalfGroup - 1) / kHalfGroup * kHalfGroup),
        pitch_(static_cast<uint32_t>(p.halves.pitch)),
        first_row_(static_cast<uint32_t>(first_row)),
        words_(p.halves.words),
        lane_(lane) {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int quad = lane + i * T::kLanes;
      x_at_[i] =
          (static_cast<uint32_t>(quad / (T::kRows / 4)) * pitch_ + RowsAt(quad % (T::kRows / 4) * 4)) * sizeof(float);
    }
  }

  // Loads features [feature, feature + 2 kDepth) of the lane's rows into registers. Past the last group of features
  // they keep any values; discard the sums.
  __device__ __forceinline__ void Load(int32_t feature) {
    if (feature >= features_) return;
    const char* const group =
        reinterpret_cast<const char*>(words_) + uint64_t{WordAt(feature) * pitch_} * sizeof(float);
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) x_[i] = Load4(reinterpret_cast<const float*>(group + x_at_[i]));
  }
  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) lds.Store4(at + (lane_ + i * T::kLanes) * 4, x_[i]);
  }

  // Loads word kHalfPairs + `number` of the group with `feature`, of the tile's rows [row, row + 4): the inverse
  // scales, or the sums of a block.
  __device__ __forceinline__ Vec4 LoadNumbers(int32_t feature, int number, int row) const {
    const uint32_t group = static_cast<uint32_t>(feature < features_ ? feature : 0) / kHalfGroup;
    const uint32_t word = group * kHalfWords + kHalfPairs + static_cast<uint32_t>(number);
    return Load4(words_ + (word * pitch_ + RowsAt(row)));
  }

 private:
  // Number of the word with `feature` and the next feature: a row of pitch_ of them. The workspace has fewer than 2^32.
  __device__ __forceinline__ static uint32_t WordAt(int32_t feature) {
    const auto of = static_cast<uint32_t>(feature);
    return of / 2 + of / kHalfGroup * (kHalfWords - kHalfPairs);
  }
  // Place of four rows of the tile in such a row of words; of the last four if they do not exist.
  __device__ __forceinline__ uint32_t RowsAt(int row) const {
    const uint32_t at = first_row_ + static_cast<uint32_t>(row);
    return at < pitch_ ? at : pitch_ - 4;
  }

  const int32_t features_;  // of whole groups
  const uint32_t pitch_, first_row_;
  const float* const words_;
  const int lane_;
  uint32_t x_at_[T::kXLoads];
  Vec4 x_[T::kXLoads] = {};
};

// A lane's part of x and of the weights. Outputs that do not exist are copies of the last one; discard their results.
template <bool kVector, typename T>
class HalfMover {
 public:
  __device__ __forceinline__ HalfMover(const ProjectionArgs& p, const ProjectionMatrix& m, int lane, int64_t first_row,
                                       int32_t first_output)
      : x_(p, lane, first_row),
        features_(p.features),
        output_(lane / T::kVectors),
        vector_(lane % T::kVectors * kWeightVector) {
    const auto* weights = static_cast<const uint16_t*>(m.weight);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int32_t wanted = first_output + output_ + i * kOutputStep;
      weights_[i] = weights + int64_t{wanted < m.outputs ? wanted : m.outputs - 1} * p.features + vector_;
    }
  }

  // Loads features [feature, feature + 2 kDepth) of the lane's rows and outputs into registers, as HalfXMover does.
  __device__ __forceinline__ void Load(int32_t feature) {
    x_.Load(feature);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      w_[i] = LoadEight<ScaledHalves, kVector>(weights_[i] + feature, features_ - feature - vector_);
    }
  }

  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
    x_.Store(lds, at);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int w = at + T::template WAt<kOutputStep>(vector_ / 2, output_, i * kOutputStep);
      float words[T::kVectorWords];
      Unpack4(w_[i].bits, words);
#pragma unroll
      for (int j = 0; j < T::kVectorWords; ++j) lds[w + j * T::kOutputs] = words[j];
    }
  }

  __device__ __forceinline__ Vec4 LoadInverses(int32_t feature, int row) const {
    return x_.LoadNumbers(feature, /*number=*/0, row);
  }

 private:
  static constexpr int kOutputStep = T::kLanes / T::kVectors;

  HalfXMover<T> x_;
  const int32_t features_;
  const int output_, vector_;
  const uint16_t* weights_[T::kWLoads];
  ScaledHalves::Raw w_[T::kWLoads];
};

// The tile of a block of 32 features with integer weights. Behind the operands lie the scales of the outputs and, if
// the format has them, their offsets and the sums of the rows' x.
template <WeightFormat kFormatOfWeights, int kTeamLanes, int kTileRows, int kTileOutputs>
struct HalfBlockTile : HalfOperandTile<kTeamLanes, kTileRows, kTileOutputs, /*depth=*/kHalfBlock / 2> {
  using Base = HalfOperandTile<kTeamLanes, kTileRows, kTileOutputs, kHalfBlock / 2>;
  static constexpr WeightFormat kFormat = kFormatOfWeights;
  static constexpr bool kOffsets = HasOffsets(kFormat);
  static constexpr int kScalesAt = Base::kFloats;
  static constexpr int kOffsetsAt = kScalesAt + kTileOutputs;
  static constexpr int kSumsAt = kOffsetsAt + kTileOutputs;
  static constexpr int kFloats = kOffsets ? kSumsAt + kTileRows : kOffsetsAt;
  static_assert(HasHalfProducts(kFormat) && ScalesOfBlock(kFormat) == 1);
  static_assert(kTeamLanes % kTileOutputs == 0);  // a lane has the scales of one output
};

// The same for HalfBlockTile, a block at a time. first_output is a multiple of kPackedRows.
template <typename T>
class HalfBlockMover {
 public:
  static constexpr WeightFormat kFormat = T::kFormat;

  __device__ __forceinline__ HalfBlockMover(const ProjectionArgs& p, const ProjectionMatrix& m, int lane,
                                            int64_t first_row, int32_t first_output)
      : x_(p, lane, first_row),
        blocks_(p.features / kHalfBlock),
        lane_(lane),
        tiles_(m, p.planes, first_output),
        scales_from_(tiles_.From(lane % T::kOutputs / kPackedRows)) {}

  // Loads features [feature, feature + 32) of the lane's rows and outputs into registers, as HalfXMover does. A block
  // past the last is a copy of it, and its scales count as zero.
  __device__ __forceinline__ void Load(int32_t feature) {
    x_.Load(feature);
    const int32_t wanted = feature / kHalfBlock;
    exists_ = wanted < blocks_;
    const int32_t block = exists_ ? wanted : blocks_ - 1;
    second_ = block % 2;
    group_ = block / 2;
    const int lane = Lane();
    const auto feature_of_lane = static_cast<uint32_t>(block * kHalfBlock + EightOfLane(lane) * 8);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      // So neighbouring lanes are in one tile of the weights, and its place is the same for all.
      const PackedRow row =
          tiles_.Row(tiles_.From(i * kOutputStep / kPackedRows), lane / T::kVectors + i * kOutputStep % kPackedRows);
      w_[i] = LoadEightBits<kFormat>(row, feature_of_lane);
    }
    scales_ =
        LoadScales<kFormat>(tiles_.Row(NotHoisted(scales_from_), lane % kPackedRows), static_cast<uint32_t>(block));
    if constexpr (T::kOffsets) {
      sums_ = x_.LoadNumbers(feature, kHalfSumsWord - kHalfPairs + wanted % 2, lane % kRowQuads * 4);
    }
  }

  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
    x_.Store(lds, at);
    const int lane = Lane();
    const int eight = EightOfLane(lane);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int w = at + T::template WAt<kOutputStep>(eight * T::kVectorWords, lane / T::kVectors, i * kOutputStep);
      uint32_t words[2], halves[T::kVectorWords];
      IntegerWords<kFormat>(EightOf<kFormat>(w_[i].q, w_[i].more, eight), words[0], words[1]);
      IntegerHalves<kFormat>(words[0], halves[0], halves[1]);
      IntegerHalves<kFormat>(words[1], halves[2], halves[3]);
#pragma unroll
      for (int j = 0; j < T::kVectorWords; ++j) lds[w + j * T::kOutputs] = BitsToFloat(halves[j]);
    }
    if constexpr (T::kOffsets) {
      if (lane < kRowQuads) lds.Store4(at + T::kSumsAt + lane * 4, sums_);
    }
    if (T::kLanes > T::kOutputs && lane >= T::kOutputs) return;
    const IntegerScale scale = IntegerScaleOf<kFormat>(scales_, {group_, second_, 0});
    lds[at + T::kScalesAt + lane] = exists_ ? scale.scale : 0.0f;
    if constexpr (T::kOffsets) lds[at + T::kOffsetsAt + lane] = exists_ ? scale.offset : 0.0f;
  }

  __device__ __forceinline__ Vec4 LoadInverses(int32_t feature, int row) const {
    return x_.LoadNumbers(feature, /*number=*/0, row);
  }

 private:
  static constexpr int kOutputStep = T::kLanes / T::kVectors;  // divides kPackedRows
  static constexpr int kRowQuads = T::kRows / 4;
  static_assert(T::kVectors == 4 && T::kVectorWords == 4);

  // Which eight features of a block a lane has.
  __device__ __forceinline__ static int EightOfLane(int lane) { return lane % T::kVectors; }
  // Addresses of all loads and stores would not fit the registers.
  __device__ __forceinline__ int Lane() const { return static_cast<int>(NotHoisted(static_cast<uint32_t>(lane_))); }

  HalfXMover<T> x_;
  const int32_t blocks_;
  const int lane_;
  const PackedTiles tiles_;
  const uint32_t scales_from_;
  PackedEight w_[T::kWLoads];
  ScaleWords scales_;
  Vec4 sums_;
  int32_t group_ = 0, second_ = 0;  // of the block in the registers
  bool exists_ = false;
};

// sum[i][j] += the sum of a block's products of_block[i][j] times its output's scale, and its offset times the sum of
// the row's x. `at`: the block's tile in LDS; places as for MultiplyStep.
template <typename T, int kSpanRows, int kSpanOutputs, typename Lds, int kRows, int kOutputs>
__device__ __forceinline__ void AddHalfBlock(Lds& lds, int at, int row, int output,
                                             const float (&of_block)[kRows][kOutputs], float (&sum)[kRows][kOutputs]) {
  FenceLoads();
#pragma unroll
  for (int j = 0; j < kOutputs; j += 4) {
    float scale[4], offset[4];
    const int from = at + output + j / 4 * kSpanOutputs;
    Unpack4(lds.Load4(from + T::kScalesAt), scale);
    if constexpr (T::kOffsets) Unpack4(lds.Load4(from + T::kOffsetsAt), offset);
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      [[maybe_unused]] float of_x[4];
      if constexpr (T::kOffsets) Unpack4(lds.Load4(at + T::kSumsAt + row + i / 4 * kSpanRows), of_x);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          float& to = sum[i + r][j + o];
          to = fmaf(scale[o], of_block[i + r][j + o], to);
          if constexpr (T::kOffsets) to = fmaf(offset[o], of_x[r], to);
        }
      }
    }
  }
}

}  // namespace gdn::gpu
