// Device code for the kernels on matrix units (bf16_terms_gpu.h): terms on their way to LDS.
//
// A stage is a group of kGroupFeatures features of a tile's outputs and rows: W's rows, term after term, then x's. Its
// rows lie as mma_tile.h says. A group's threads copy its stages, which run ahead by all but one.
// A tile T has:
//   kXTerms, kWTerms; kOutputs, kRows            terms of each operand; the tile's size
//   kGroups, kGroupThreads                       groups that are computed at the same time, and the threads of each
//   kWRows, kStageRows, kStageFloats, kStages    a stage: W's rows, all rows, its floats; stages of a group
//   kStagesFloats                                floats of a group's stages; those of groups lie side by side in LDS
//   kKeepsAddresses                              whether a thread's addresses stay in registers
//   Lds                                          the array with the stages
// Thread safety: all threads of a block make the same calls.
//
//   Stages<T> stages(args, m, first_output, first_row, GroupRange(args), s.floats);
//   stages.Begin();
//   WaitForCopies<T::kStages - 2>();
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/mma_tile.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/bf16_terms_gpu.h"
#include "kernels/projection/projection_args.h"

namespace gdn::gpu {

static_assert(kTileFeatures == kGroupFeatures && kPartFeatures % (8 * kGroupFeatures) == 0);

// Returns the floats of LDS that one of `blocks` blocks of a multiprocessor may have: of 228 KB, the device keeps one
// for each block.
constexpr int LdsFloatsOfBlock(int blocks) { return (228 / blocks - 1) * 256; }

// Returns the groups of a part, a multiple of any tile's kGroups. A sum in one part has more than there are.
inline int32_t PartGroups(ProjectionPath path) {
  return path == ProjectionPath::kRowStable ? kPartFeatures / kGroupFeatures : 1 << 20;
}

struct TermsArgs {
  ProjectionArgs p;
  Bf16Terms x;
  Bf16Terms w;      // without data
  bool w_is_ready;  // no kernel writes it
  int32_t part_groups;
  float* part_sums;  // of tile after tile, of each part the block's threads' totals; if parts have blocks of their own
};

// The groups of a block: of its part or of all, if the grid has one block a tile.
struct GroupRange {
  int32_t first, count;

  __device__ __forceinline__ explicit GroupRange(const TermsArgs& args) {
    const int32_t all = (args.p.features + kGroupFeatures - 1) / kGroupFeatures;
    first = static_cast<int32_t>(blockIdx.y) * args.part_groups;
    count = gridDim.y == 1 ? all : min(args.part_groups, all - first);
  }
};

// Return the number of this thread's group in a round, and its own among the group's threads. With one group they are
// constants to the compiler, so that addresses which all threads share stay in scalar registers.
template <typename T>
__device__ __forceinline__ int GroupOfThread() {
  return T::kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / T::kGroupThreads;
}
template <typename T>
__device__ __forceinline__ int ThreadOfGroup() {
  return T::kGroups == 1 ? static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x) % T::kGroupThreads;
}

// A tile's stages of every kGroups'th group of a range. Outputs that do not exist are copies of the last one. Rows of x
// that do not exist are zeros with kKeepsAddresses, as are groups of a round that has others: many blocks that read one
// row wait for each other. Else they are copies of the last row, because registers are short.
template <typename T>
class Stages {
 public:
  __device__ __forceinline__ Stages(const TermsArgs& args, const ProjectionMatrix& m, int32_t first_output,
                                    int64_t first_row, const GroupRange& groups, typename T::Lds& lds)
      : args_(args),
        w_(static_cast<const uint16_t*>(m.weight) + groups.first * kGroupFeatures),
        x_(args.x.data + first_row * args.x.stride + groups.first * kGroupFeatures),
        features_(min(args.p.features - groups.first * kGroupFeatures, groups.count * kGroupFeatures)),
        outputs_(static_cast<uint32_t>(m.outputs)),
        first_output_(static_cast<uint32_t>(first_output)),
        last_row_(static_cast<uint32_t>(min(args.p.rows - 1 - first_row, int64_t{T::kRows}))),
        lds_(lds) {
    if constexpr (T::kKeepsAddresses) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) from_[i] = AddressOf(PlaceOf(i * kRowStep, Row()), /*feature=*/0);
    }
  }

  // Copies the stages of the first rounds, all but one.
  __device__ __forceinline__ void Begin() {
    if (!args_.w_is_ready) WaitForPriorKernels();
#pragma unroll 1
    for (int i = 0; i + 1 < T::kStages; ++i) CopyRows<0, T::kWRows>(i, i * T::kStageFloats);
    WaitForPriorKernels();
#pragma unroll 1
    for (int i = 0; i + 1 < T::kStages; ++i) {
      CopyRows<T::kWRows, T::kStageRows>(i, i * T::kStageFloats);
      CommitCopies();
    }
  }
  // Copies the group of round `round` to the group's stage that begins `at` floats from its first; nothing if no group
  // of the round exists.
  __device__ __forceinline__ void Copy(int32_t round, int at) {
    CopyRows<0, T::kStageRows>(round, at);
    CommitCopies();
  }

 private:
  static constexpr int kRowStep = T::kGroupThreads / kTileParts;
  static constexpr int kCopies = (T::kStageRows + kRowStep - 1) / kRowStep;

  // Unsigned, because a remainder of signed numbers takes several instructions, and copies are bound by those.
  static __device__ __forceinline__ uint32_t Row() { return static_cast<uint32_t>(ThreadOfGroup<T>()) / kTileParts; }

  template <int kFirst, int kEnd>
  __device__ __forceinline__ void CopyRows(int32_t round, int at) {
    if (round * T::kGroups * kGroupFeatures >= features_) return;
    const uint32_t part = threadIdx.x % kTileParts;
    const int32_t own = (round * T::kGroups + GroupOfThread<T>()) * kGroupFeatures + static_cast<int32_t>(part) * 8;
    const bool exists = own < features_;
    const int32_t feature = exists ? own : 0;
    uint32_t row = Row();
    if constexpr (!T::kKeepsAddresses) row = NotHoisted(row);
    at += GroupOfThread<T>() * T::kStagesFloats;
    // A step is a multiple of a part's turns, or half of them.
    const int place = TilePartAt(row, part);
    static_assert(kRowStep % kTileParts == 0 || kRowStep == kTileParts / 2);
#pragma unroll
    for (int first = kFirst; first < kEnd; first += kRowStep) {
      if (first + kRowStep > kEnd && static_cast<uint32_t>(first) + row >= static_cast<uint32_t>(kEnd)) break;
      const uint16_t* const from =
          T::kKeepsAddresses ? from_[first / kRowStep] + feature : AddressOf(PlaceOf(first, row), feature);
      CopyAsync16(lds_, at + (place ^ first % kTileParts * kTilePartFloats) + first * kTileRowFloats,
                  reinterpret_cast<const float*>(from), exists && IsRead(PlaceOf(first, row)));
    }
  }

  // A row of a stage: number `row` of W's or of x's term.
  struct Place {
    bool of_x;
    int term;
    uint32_t row;
  };
  // `first` is a constant, a multiple of kRowStep.
  static_assert(T::kOutputs % kRowStep == 0);
  static __device__ __forceinline__ Place PlaceOf(int first, uint32_t row) {
    if (first < T::kWRows) return {false, first / T::kOutputs, row + first % T::kOutputs};
    const int term = (first - T::kWRows) / T::kRows;
    const int of_term = (first - T::kWRows) % T::kRows;
    row += of_term;
    if (of_term + kRowStep > T::kRows && row >= uint32_t{T::kRows}) return {true, term + 1, row - T::kRows};
    return {true, term, row};
  }
  __device__ __forceinline__ const uint16_t* AddressOf(const Place& at, int32_t feature) const {
    return at.of_x ? RowFrom(x_ + feature + at.term * args_.x.plane, min(at.row, last_row_), args_.x.stride)
                   : RowFrom(w_ + feature + at.term * args_.w.plane, min(first_output_ + at.row, outputs_ - 1),
                             args_.w.stride);
  }
  __device__ __forceinline__ bool IsRead(const Place& at) const {
    return !T::kKeepsAddresses || !at.of_x || at.row <= last_row_;
  }
  // In bytes, which is one multiply-add.
  static __device__ __forceinline__ const uint16_t* RowFrom(const uint16_t* first, uint32_t row, uint32_t stride) {
    return reinterpret_cast<const uint16_t*>(reinterpret_cast<const char*>(first) + uint64_t{row} * (stride * 2));
  }

  const TermsArgs& args_;
  const uint16_t* const w_;
  const uint16_t* const x_;
  const int32_t features_;  // of the range
  const uint32_t outputs_, first_output_;
  const uint32_t last_row_;  // from the tile's first on
  typename T::Lds& lds_;
  const uint16_t* from_[T::kKeepsAddresses ? kCopies : 1];
};

[[maybe_unused]] __device__ __forceinline__ void StoreTotal(const ProjectionArgs& p, const ProjectionMatrix& m,
                                                            int64_t row, int32_t output, float total) {
  if (row < p.rows && output < m.outputs) StoreElement(m.y, m.y_dtype, row * m.y_stride + output, total);
}

}  // namespace gdn::gpu
