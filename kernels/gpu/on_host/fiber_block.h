// The implementation of simt.h: lanes as fibers, their rendezvous, and shadow state of LDS. Kernels never include it.
//
// Thread safety: everything belongs to the launch running on the calling thread.
//
//   absl::Status s = simt::RunGrid("scale", {blocks}, 256, 64, [&] { ScaleKernel(params); });
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace gdn::gpu::simt {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct LaneContext {
  Dim3 thread{0, 0, 0};
  Dim3 block{0, 0, 0};
  Dim3 block_dim;
  Dim3 grid_dim;
};

struct CallSite {
  const char* file;
  int line;
};

// The values that the lanes of a wave brought to a cross-lane call; valid until the lane's second call after it.
struct WaveValues {
  int lane;   // the caller's number in the wave
  int lanes;  // number of lanes that are present, from lane 0 on
  const uint32_t* values;

  bool present(int from) const { return from >= 0 && from < lanes; }
  inline uint32_t At(int from) const;  // fails the launch if lane `from` is not present
};

WaveValues Exchange(uint32_t value, int wave_width, CallSite site);
template <int kWave>
WaveValues Exchange(uint32_t value, CallSite site) {
  return Exchange(value, kWave, site);
}
void WaveFence(CallSite site);
void BlockBarrier(CallSite site);

// Ends the launch with the error "`what` `detail`", naming kernel, block and thread. Does not return; for kernel code.
[[noreturn]] void Fail(const char* what, int64_t detail);

uint32_t WaveValues::At(int from) const {
  if (!present(from)) Fail("a cross-lane call reads a lane that is not there, lane", from);
  return values[from];
}

inline void RequireAligned(const void* p, uintptr_t alignment) {
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0)
    Fail("a vector access is misaligned, by bytes", reinterpret_cast<uintptr_t>(p) % alignment);
}
inline void RequireLdsIndex(int index, int count, int size) {
  if (index < 0 || index + count > size) Fail("an LDS access is out of bounds, at element", index);
}

// The last write and the reads of an LDS element: when, and by which lane of the block, in one word each, so that a
// check is a comparison or two. Epochs count the barriers of the block or of the wave from 1. Many readers are several
// lanes of the reader's wave since its last fence; many waves have read since the last block barrier.
inline constexpr int kLdsLaneShift = 2, kLdsWaveEpochShift = 12, kLdsBlockEpochShift = 38;
inline constexpr uint64_t kLdsManyReaders = 1, kLdsManyWaves = 2;
inline constexpr uint64_t kLdsLane = uint64_t{1023} << kLdsLaneShift;
inline constexpr uint64_t kMostEpochs = (uint64_t{1} << 26) - 1;
inline constexpr uint64_t kLdsWaveEpoch = kMostEpochs << kLdsWaveEpochShift;
inline constexpr uint64_t kLdsBlockEpoch = kMostEpochs << kLdsBlockEpochShift;
struct LdsShadow {
  uint64_t write = 0;  // 0: never written
  uint64_t read = 0;
};

// The running lane's context, and its data for LDS checks. Every access is checked, so the checks are inline.
struct RunningLane {
  const LaneContext* context = nullptr;
  uint64_t now = 0;          // what an access by this lane is recorded as
  uint64_t epochs = 0;       // the part of it that is the wave's
  uint64_t other_waves = 0;  // the bits of kLdsLane in which lanes of two waves differ
};
[[gnu::tls_model("initial-exec")]] extern constinit thread_local RunningLane running_lane;

// Returns the context of the lane that is running; for kernel code only.
inline const LaneContext& Here() { return *running_lane.context; }

// End the launch with the error that no barrier separates the access from that of another lane (`other`, a word of
// LdsShadow, for a write), or that the element was never written. They do not return.
[[noreturn]] void FailLdsRead(const LdsShadow& shadow);
[[noreturn]] void FailLdsWrite(const LdsShadow& shadow, uint64_t other);

// True if the running lane may access the element as far as writes go: false if another lane wrote it last and no
// barrier has separated the two accesses. The lane is named and no reference to it is taken: the linker makes the
// addition to its address an instruction that sets no flags, which UndefinedBehaviorSanitizer's check of references
// reads.
inline bool IsAfterWrite(const LdsShadow& shadow) {
  const uint64_t apart = shadow.write ^ running_lane.now;
  if ((apart & kLdsBlockEpoch) != 0 || (apart & kLdsLane) == 0) return true;
  return (apart & running_lane.other_waves) == 0 && (apart & kLdsWaveEpoch) != 0;
}

// True if the reads of kCount elements cannot fail and change nothing in their shadows, as most reads that other lanes
// have made before. Two lanes have read since the last fence, or two waves since the last barrier, and one of them was
// not the writer: so the write was before that, and a later one would have failed.
template <int kCount>
bool AreRepeatedReads(const LdsShadow* shadows) {
  const uint64_t same_wave = kLdsBlockEpoch | kLdsWaveEpoch | running_lane.other_waves | kLdsManyReaders;
  uint64_t apart = 0;
  for (int i = 0; i < kCount; ++i) apart |= shadows[i].read ^ (running_lane.now | kLdsManyReaders);
  if ((apart & same_wave) == 0) return true;
  apart = 0;
  for (int i = 0; i < kCount; ++i) apart |= shadows[i].read ^ (running_lane.now | kLdsManyWaves);
  return (apart & (kLdsBlockEpoch | kLdsManyWaves)) == 0;
}

// Records any other read.
void RecordLdsRead(LdsShadow& shadow);

template <int kCount>
[[gnu::always_inline]] inline void CheckLdsReads(LdsShadow* shadows) {
  if (AreRepeatedReads<kCount>(shadows)) return;
  for (int i = 0; i < kCount; ++i) RecordLdsRead(shadows[i]);
}

inline void CheckLdsWrite(LdsShadow& shadow) {
  if (!IsAfterWrite(shadow)) FailLdsWrite(shadow, shadow.write);
  const uint64_t apart = shadow.read ^ running_lane.now;
  if ((apart & kLdsBlockEpoch) == 0) {
    const bool unordered = (apart & (running_lane.other_waves | kLdsManyWaves)) != 0 ||
                           ((apart & kLdsWaveEpoch) == 0 && (apart & (kLdsManyReaders | kLdsLane)) != 0);
    if (unordered) FailLdsWrite(shadow, shadow.read);
  }
  shadow.write = running_lane.now;
}

// Returns the block's memory for one Shared struct, `construct` being its key; poisoned and then constructed at first
// use in each block. The block owns it.
void* BlockSharedMemory(size_t bytes, size_t alignment, void (*construct)(void*));

// True if the processor has FMA3, whose instruction kernels then use.
extern const bool has_fma;

// The lane's copies to LDS that have not arrived (CopyAsync16). QueueCopy adds one, CommitCopies ends a group of them,
// and WaitForCopies writes the groups but for the `newest` latest. A block that ends with copies on their way fails.
void QueueCopy(float& to, LdsShadow& shadow, float value);
void CommitCopies();
void WaitForCopies(int newest);

// Records that a lane of the block has called WaitForPriorKernels.
void NoteWait();

// Runs `kernel` for every thread of every block on the calling thread, and returns when all have run. `threads`: of a
// block, 1 to 1,024. `early` is Grid::early. INTERNAL if a check fails; blocks after that one do not run.
absl::Status RunGrid(const char* name, const Dim3& grid, int threads, int wave_width,
                     const std::function<void()>& kernel, bool early = false);

// Sets the seed for the order of blocks and waves in this thread's later launches (default 1).
void SetScheduleSeed(uint64_t seed);

}  // namespace gdn::gpu::simt
