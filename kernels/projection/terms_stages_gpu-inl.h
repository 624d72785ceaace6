// Device code for the kernels on matrix units (bf16_terms_gpu.h): terms on their way to LDS, and sums of groups on
// theirs to memory.
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
// and, for GroupTotals,
//   kThreads, kResults                           threads of the block; kOutputs x kRows
//   SumsLds                                      the array with the groups' sums, kResults each
// Thread safety: all threads of a block make the same calls.
//
//   Stages<T> stages(args, m, first_output, first_row, s.floats);
//   stages.Begin();
//   WaitForCopies<T::kStages - 2>();
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/mma_tile.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/bf16_terms_gpu.h"
#include "kernels/projection/projection_args.h"

namespace gdn::gpu {

static_assert(kTileFeatures == kGroupFeatures);

// Returns the floats of LDS that one of `blocks` blocks of a multiprocessor may have: of 228 KB, the device keeps one
// for each block.
constexpr int LdsFloatsOfBlock(int blocks) { return (228 / blocks - 1) * 256; }

struct TermsArgs {
  ProjectionArgs p;
  Bf16Terms x;
  Bf16Terms w;      // without data
  bool w_is_ready;  // no kernel writes it
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

// A tile's stages of every kGroups'th group. Outputs that do not exist are copies of the last one. Rows of x that do
// not exist are copies of the last one too or, with kKeepsAddresses, zeros, as are groups of a round that has others:
// zeros spare few rows the reads, but made a layer's prefill of 512 tokens take 355 us instead of 327.
template <typename T>
class Stages {
 public:
  __device__ __forceinline__ Stages(const TermsArgs& args, const ProjectionMatrix& m, int32_t first_output,
                                    int64_t first_row, typename T::Lds& lds)
      : args_(args),
        w_(static_cast<const uint16_t*>(m.weight)),
        x_(args.x.data + first_row * args.x.stride),
        outputs_(m.outputs),
        first_output_(first_output),
        last_row_(static_cast<int32_t>(min(args.p.rows - 1 - first_row, int64_t{T::kRows}))),
        lds_(lds) {
    if constexpr (T::kKeepsAddresses) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) from_[i] = AddressOf(i * kRowStep, Row());
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

  static __device__ __forceinline__ int32_t Row() { return ThreadOfGroup<T>() / kTileParts; }

  template <int kFirst, int kEnd>
  __device__ __forceinline__ void CopyRows(int32_t round, int at) {
    if (round * T::kGroups * kGroupFeatures >= args_.p.features) return;
    const int part = static_cast<int>(threadIdx.x) % kTileParts;
    const int32_t feature = (round * T::kGroups + GroupOfThread<T>()) * kGroupFeatures + part * 8;
    const bool exists = feature < args_.p.features;
    int32_t row = Row();
    if constexpr (!T::kKeepsAddresses) row = static_cast<int32_t>(NotHoisted(static_cast<uint32_t>(row)));
#pragma unroll
    for (int first = kFirst; first < kEnd; first += kRowStep) {
      if (first + kRowStep > kEnd && first + row >= kEnd) break;
      const uint16_t* const from = T::kKeepsAddresses ? from_[first / kRowStep] : AddressOf(first, row);
      const bool copied = exists && (!T::kKeepsAddresses || from != nullptr);
      CopyAsync16(lds_, GroupOfThread<T>() * T::kStagesFloats + at + TilePartAt(first + row, part),
                  reinterpret_cast<const float*>(exists ? from + feature : from), copied);
    }
  }

  // Returns where row `first` + `row` of a stage begins in memory; null, with kKeepsAddresses, if x has no such row.
  // `first` is a constant, a multiple of kRowStep.
  static_assert(T::kOutputs % kRowStep == 0);
  __device__ __forceinline__ const uint16_t* AddressOf(int first, int32_t row) const {
    if (first < T::kWRows) {
      const int32_t output = min(first_output_ + first % T::kOutputs + row, outputs_ - 1);
      return w_ + first / T::kOutputs * args_.w.plane + output * int64_t{args_.w.stride};
    }
    int term = (first - T::kWRows) / T::kRows;
    row += (first - T::kWRows) % T::kRows;
    if ((first - T::kWRows) % T::kRows + kRowStep > T::kRows && row >= T::kRows) {
      row -= T::kRows;
      ++term;
    }
    if (T::kKeepsAddresses && row > last_row_) return nullptr;
    return x_ + term * args_.x.plane + min(row, last_row_) * int64_t{args_.x.stride};
  }

  const TermsArgs& args_;
  const uint16_t* const w_;
  const uint16_t* const x_;
  const int32_t outputs_, first_output_;
  const int32_t last_row_;  // from the tile's first on
  typename T::Lds& lds_;
  const uint16_t* from_[T::kKeepsAddresses ? kCopies : 1];
};

[[maybe_unused]] __device__ __forceinline__ void StoreTotal(const ProjectionArgs& p, const ProjectionMatrix& m,
                                                            int64_t row, int32_t output, float total) {
  if (row < p.rows && output < m.outputs) StoreElement(m.y, m.y_dtype, row * m.y_stride + output, total);
}

// A thread's totals of a tile whose groups' sums lie in LDS, group by group: each kThreads'th.
template <typename T>
class GroupTotals {
 public:
  // Returns where the sum of a row and output is, of group number `group` in LDS. Pairs of rows are turned by eight
  // outputs, so that the sums of a wave lie in different banks.
  static __device__ __forceinline__ int PlaceOf(int group, int row, int output) {
    return group * T::kResults + row * T::kOutputs + (output ^ row / 2 % min(4, T::kOutputs / 8) * 8);
  }

  // Adds the sums of `count` groups in LDS, from number `first` on.
  __device__ __forceinline__ void Add(typename T::SumsLds& sums, int first, int count) {
    ForEach([&](int i, int row, int output) {
      const int place = PlaceOf(first, row, output);
#pragma unroll 8
      for (int group = 0; group < count; ++group) totals_[i] += sums[place + group * T::kResults];
    });
  }
  __device__ __forceinline__ void Store(const ProjectionArgs& p, const ProjectionMatrix& m, int64_t first_row,
                                        int32_t first_output) const {
    ForEach([&](int i, int row, int output) { StoreTotal(p, m, first_row + row, first_output + output, totals_[i]); });
  }

 private:
  static constexpr int kOwn = (T::kResults + T::kThreads - 1) / T::kThreads;

  template <typename Function>
  static __device__ __forceinline__ void ForEach(const Function& function) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int result = static_cast<int>(threadIdx.x) + i * T::kThreads;
      if (T::kResults % T::kThreads != 0 && result >= T::kResults) break;
      function(i, result / T::kOutputs, result % T::kOutputs);
    }
  }

  float totals_[kOwn] = {};
};

}  // namespace gdn::gpu
