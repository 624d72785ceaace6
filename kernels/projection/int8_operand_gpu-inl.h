// Device code: moves a stage of 32 features of rounded x and of integer weights from memory to LDS.
//
// A team of lanes shares the stage. It lies in LDS from word `at` on, without gaps:
//   x        [words of KindOfInt8][rows of the tile], as rounded_rows_gpu.h has them
//   weights  [kBlockWords][outputs of the tile], words of four signed bytes, the weight zero being 0
//   scales   [scales][outputs], then offsets [scales][outputs] if the kind has them
// Outputs of every second eight features are swapped 16 apart, so that a wave's simultaneous stores go to different
// banks. The format is a run-time value, as in quantised_operand_gpu-inl.h.
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
  constexpr bool operator==(const Int8Kind& other) const { return scales == other.scales && offsets == other.offsets; }
};
constexpr Int8Kind KindOf(WeightFormat format) { return {ScalesOfBlock(format), HasOffsets(format)}; }

struct Int8Args {
  ProjectionArgs p;
  RoundedRows x;
};

// The stage of a tile of kTileRows x kTileOutputs that kTeamLanes lanes share.
template <int kScalesOfBlock, bool kWithOffsets, int kTeamLanes, int kTileRows, int kTileOutputs>
struct Int8Stage {
  static constexpr Int8Kind kKind{kScalesOfBlock, kWithOffsets};
  static constexpr int kLanes = kTeamLanes;
  static constexpr int kRows = kTileRows;
  static constexpr int kOutputs = kTileOutputs;
  static constexpr int kWeightsAt = kKind.words() * kRows;
  static constexpr int kScalesAt = kWeightsAt + kBlockWords * kOutputs;
  static constexpr int kOffsetsAt = kScalesAt + kKind.scales * kOutputs;
  static constexpr int kFloats = kOffsetsAt + (kKind.offsets ? kKind.scales * kOutputs : 0);
  // Loads of a lane: of four rows' words of x, of eight weights.
  static constexpr int kXVectors = kKind.words() * kRows / 4;
  static constexpr int kXLoads = (kXVectors + kLanes - 1) / kLanes;
  static constexpr int kWLoads = 4 * kOutputs / kLanes;
  static_assert(kWLoads * kLanes == 4 * kOutputs && kRows % 4 == 0 && kOutputs % 32 == 0);

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
  // that do not exist are copies of others; discard their results.
  __device__ __forceinline__ Int8Mover(const Int8Args& args, const ProjectionMatrix& m, int lane, int32_t first_row,
                                       int32_t first_output)
      : lane_(lane),
        features_(args.p.features),
        pitch_(args.x.pitch),
        format_(args.p.format),
        planes_(args.p.planes),
        weights_{static_cast<const char*>(m.weight), nullptr},
        outputs_(m.outputs),
        first_output_(first_output),
        x_(args.x.words) {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int vector = lane + i * T::kLanes;
      const int32_t row = first_row + vector % kQuads * 4;
      x_at_[i] = vector / kQuads * pitch_ + (row < pitch_ ? row : pitch_ - 4);
    }
  }

  // Loads the tile's part of the features [32 block, 32 block + 32), which must exist, into registers.
  __device__ __forceinline__ void Load(int32_t block) {
    block_ = block;
    const float* const x = x_ + int64_t{block} * kRoundedWords * pitch_;
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      if (lane_ + i * T::kLanes < T::kXVectors) x_words_[i] = Load4(x + x_at_[i]);
    }
    WithFormat([&](auto format) { LoadWeights<decltype(format)::value>(); });
  }

  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
#pragma unroll
    for (int i = 0; i < T::kXLoads; ++i) {
      const int vector = lane_ + i * T::kLanes;
      if (vector < T::kXVectors) lds.Store4(at + vector * 4, x_words_[i]);
    }
    WithFormat([&](auto format) { StoreWeights<decltype(format)::value>(lds, at); });
  }

 private:
  static constexpr int kQuads = T::kRows / 4;

  template <typename Function>
  __device__ __forceinline__ void WithFormat(const Function& function) const {
    WithQuantisedFormat(format_, [&](auto format) {
      constexpr WeightFormat kFormat = decltype(format)::value;
      if constexpr (HasIntegerWeights(kFormat) && KindOf(kFormat) == T::kKind) function(format);
    });
  }
  // Four neighbouring lanes have the four eights of an output.
  __device__ __forceinline__ int Eight() const { return lane_ % 4; }
  __device__ __forceinline__ int Output(int i) const { return lane_ / 4 + i * (T::kLanes / 4); }

  template <WeightFormat kFormat>
  __device__ __forceinline__ void LoadWeights() {
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int32_t wanted = first_output_ + Output(i);
      const int32_t output = wanted < outputs_ ? wanted : outputs_ - 1;
      const PackedRow row = PackedRowOf(weights_, planes_, output / kPackedRows, output, features_);
      w_[i] = LoadPackedEight<kFormat>(row, block_ * kInt8Block + Eight() * 8, features_);
    }
  }
  template <WeightFormat kFormat, typename Lds>
  __device__ __forceinline__ void StoreWeights(Lds& lds, int at) const {
    constexpr int kScales = ScalesOfBlock(kFormat);
    const EightPlace place{block_ / 2, block_ % 2, Eight()};
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      uint32_t first, second;
      IntegerWords<kFormat>(EightOf<kFormat>(w_[i].bits.q, w_[i].bits.more, place.eight), first, second);
      const int word = at + T::WAt(2 * place.eight, Output(i));
      lds[word] = BitsToFloat(WithoutZero<kFormat>(first));
      lds[word + T::kOutputs] = BitsToFloat(WithoutZero<kFormat>(second));
      const IntegerScale scale = IntegerScaleOf<kFormat>(w_[i].scales, place);
      if (place.eight % (4 / kScales) == 0) {
        const int number = place.eight / (4 / kScales) * T::kOutputs + Output(i);
        lds[at + T::kScalesAt + number] = scale.scale;
        if constexpr (HasOffsets(kFormat)) lds[at + T::kOffsetsAt + number] = scale.offset;
      }
    }
  }

  const int lane_;
  const int32_t features_;
  const int32_t pitch_;
  const WeightFormat format_;
  const PackedPlanes planes_;
  const PackedMatrix weights_;
  const int32_t outputs_, first_output_;
  const float* const x_;
  int32_t x_at_[T::kXLoads];
  Vec4 x_words_[T::kXLoads];
  RawEight w_[T::kWLoads];
  int32_t block_ = 0;
};

}  // namespace gdn::gpu
