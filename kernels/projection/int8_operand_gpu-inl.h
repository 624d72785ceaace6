// Device code: moves a stage of 32 features of rounded x and of integer weights from memory to LDS.
//
// A team of lanes shares the stage. It lies in LDS from word `at` on, without gaps:
//   x        [Int8Kind::words()][rows of the tile], as rounded_rows_gpu.h has them
//   weights  [kBlockWords][outputs of the tile], words of four signed bytes, the weight zero being 0
//   scales   [scales][outputs], then offsets [scales][outputs] if the kind has them
// Outputs of every second eight features are swapped 16 apart, so that a wave's simultaneous stores go to different
// banks.
// Thread safety: all lanes of the team make the same calls; the caller places the barriers.
//
//   Int8Mover<T> mover(args, m, lane, first_row, first_output);
//   mover.Load(block);
//   mover.Store(lds, at);
#pragma once

#include <cstdint>

#include "kernels/gpu/device.h"
#include "kernels/projection/integer_weights_gpu-inl.h"
#include "kernels/projection/projection_args.h"
#include "kernels/projection/quantised_operand_gpu-inl.h"
#include "kernels/projection/rounded_rows_gpu.h"

namespace gdn::gpu {

// The numbers of a block that products differ by.
struct Int8Kind {
  int scales;    // of a block of 32 weights, 1 or 2
  bool offsets;  // one for each scale

  // Words of x that products need.
  constexpr int words() const { return !offsets ? kScaleWord + 1 : scales == 1 ? kSumWord + 1 : kHalfSumWord + 1; }
};
constexpr Int8Kind KindOf(WeightFormat format) { return {ScalesOfBlock(format), HasOffsets(format)}; }

struct Int8Args {
  ProjectionArgs p;
  RoundedRows x;
};

// The stage of a tile of kTileRows x kTileOutputs that kTeamLanes lanes share.
template <WeightFormat kFormatOfWeights, int kTeamLanes, int kTileRows, int kTileOutputs>
struct Int8Stage {
  static constexpr WeightFormat kFormat = kFormatOfWeights;
  static constexpr Int8Kind kKind = KindOf(kFormat);
  static constexpr int kLanes = kTeamLanes;
  static constexpr int kRows = kTileRows;
  static constexpr int kOutputs = kTileOutputs;
  static constexpr int kWeightsAt = kKind.words() * kRows;
  static constexpr int kScalesAt = kWeightsAt + kBlockWords * kOutputs;
  static constexpr int kOffsetsAt = kScalesAt + kKind.scales * kOutputs;
  static constexpr int kFloats = kOffsetsAt + (kKind.offsets ? kKind.scales * kOutputs : 0);
  // Loads of a lane: of four rows' words of x, of eight weights.
  static constexpr uint32_t kXVectors = kKind.words() * kRows / 4;
  static constexpr int kXLoads = (static_cast<int>(kXVectors) + kLanes - 1) / kLanes;
  static constexpr int kWLoads = 4 * kOutputs / kLanes;
  static_assert(kWLoads * kLanes == 4 * kOutputs && kLanes % kOutputs == 0 && kRows % 4 == 0 && kOutputs % 32 == 0);

  // Returns the place of `output` in word `word` of the weights. Four neighbours from a multiple of four on are
  // adjacent.
  __device__ __forceinline__ static constexpr int WAt(int word, int output) {
    return kWeightsAt + word * kOutputs + (output ^ (word / 2 % 2 * 16));
  }
};

template <typename T>
class Int8Mover {
 public:
  // The team's lane `lane` moves for the tile of rows from first_row and outputs from first_output on. Rows and outputs
  // that do not exist are copies of others or zeros; discard their results.
  __device__ __forceinline__ Int8Mover(const Int8Args& args, const ProjectionMatrix& m, uint32_t lane,
                                       int32_t first_row, int32_t first_output)
      : lane_(lane),
        wave_tile_(OfWave(static_cast<int>(lane / (4 * kPackedRows)))),
        pitch_(args.x.pitch),
        x_(args.x.words),
        tiles_(m, args.p.planes, first_output),
        scales_from_(tiles_.From(ScaledOutput(lane) / kPackedRows)) {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const uint32_t vector = lane + i * T::kLanes;
      const int32_t row = first_row + static_cast<int32_t>(vector % kQuads * 4);
      x_at_[i] = static_cast<int32_t>(vector / kQuads) * pitch_ + (row < pitch_ ? row : pitch_ - 4);
    }
  }

  // Loads the tile's part of the features [32 block, 32 block + 32), which must exist, into registers.
  __device__ __forceinline__ void Load(int32_t block) {
    block_ = block;
    const uint32_t lane = Lane();
    const float* const x = x_ + int64_t{block} * kRoundedWords * pitch_;
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      if (lane + i * T::kLanes < T::kXVectors) x_words_[i] = Load4(x + x_at_[i]);
    }
    const auto block32 = static_cast<uint32_t>(block);
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      w_[i] = LoadEightBits<T::kFormat>(RowOf(lane, i), block32 * kInt8Block + static_cast<uint32_t>(Eight(lane)) * 8);
    }
    scales_ = LoadScales<T::kFormat>(tiles_.Row(NotHoisted(scales_from_), ScaledOutput(lane) % kPackedRows), block32);
  }

  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
    const uint32_t lane = Lane();
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const uint32_t vector = lane + i * T::kLanes;
      if (vector < T::kXVectors) lds.Store4(at + static_cast<int>(vector * 4), x_words_[i]);
    }
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      uint32_t first, second;
      IntegerWords<T::kFormat>(EightOf<T::kFormat>(w_[i].q, w_[i].more, Eight(lane)), first, second);
      const int word = at + T::WAt(2 * Eight(lane), Output(lane, i));
      lds[word] = BitsToFloat(WithoutZero<T::kFormat>(first));
      lds[word + T::kOutputs] = BitsToFloat(WithoutZero<T::kFormat>(second));
    }
    if (lane >= T::kOutputs) return;
#pragma unroll
    for (int n = 0; n < T::kKind.scales; ++n) {
      const IntegerScale scale = IntegerScaleOf<T::kFormat>(scales_, {block_ / 2, block_ % 2, 2 * n});
      const int number = at + n * T::kOutputs + static_cast<int>(lane);
      lds[number + T::kScalesAt] = scale.scale;
      if constexpr (T::kKind.offsets) lds[number + T::kOffsetsAt] = scale.offset;
    }
  }

 private:
  static constexpr uint32_t kQuads = T::kRows / 4;

  // Four neighbouring lanes have the four eights of an output. Each of the first kOutputs lanes has the scales of one.
  // The others load them too: no branch.
  __device__ __forceinline__ static int Eight(uint32_t lane) { return static_cast<int>(lane % 4); }
  __device__ __forceinline__ static int Output(uint32_t lane, int i) {
    return static_cast<int>(lane / 4) + i * (T::kLanes / 4);
  }
  __device__ __forceinline__ static int ScaledOutput(uint32_t lane) { return static_cast<int>(lane % T::kOutputs); }
  // Addresses of all loads and stores would not fit the registers.
  __device__ __forceinline__ uint32_t Lane() const { return NotHoisted(lane_); }

  // The row of Output(lane, i). A wave's lanes have neighbours, so their tile's place is the same for all.
  __device__ __forceinline__ PackedRow RowOf(uint32_t lane, int i) const {
    constexpr int kStep = T::kLanes / 4;
    static_assert(kStep % kPackedRows == 0 || kPackedRows % kStep == 0);
    return tiles_.Row(tiles_.From(wave_tile_ + i * kStep / kPackedRows), Output(lane, i) % kPackedRows);
  }

  const uint32_t lane_;
  const int32_t wave_tile_;  // of the wave's first outputs
  const int32_t pitch_;
  const float* const x_;
  const PackedTiles tiles_;
  const uint32_t scales_from_;
  int32_t x_at_[T::kXLoads];
  Vec4 x_words_[T::kXLoads];
  PackedEight w_[T::kWLoads];
  ScaleWords scales_;
  int32_t block_ = 0;
};

}  // namespace gdn::gpu
