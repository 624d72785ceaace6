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

// The last writer and reader of an LDS element (lane numbers in the block). Epochs count the barriers of the block or
// of the wave from 1; 0 means never.
struct LdsShadow {
  uint32_t write_block_epoch = 0;
  uint32_t write_wave_epoch = 0;
  uint32_t read_block_epoch = 0;
  uint32_t read_wave_epoch = 0;
  uint16_t writer = 0;
  uint16_t reader = 0;
  bool many_readers = false;       // several lanes of the reader's wave have read since its last fence
  bool many_reader_waves = false;  // several waves have read since the last block barrier
};

// The running lane's context, and its data for LDS checks. Every access is checked, so the checks are inline.
struct RunningLane {
  const LaneContext* context = nullptr;
  uint32_t block_epoch = 0;
  uint32_t wave_epoch = 0;
  uint16_t index = 0;
  uint16_t wave = 0;
  uint16_t wave_shift = 0;  // lane >> wave_shift is the lane's wave
};
[[gnu::tls_model("initial-exec")]] extern constinit thread_local RunningLane running_lane;

// Returns the context of the lane that is running; for kernel code only.
inline const LaneContext& Here() { return *running_lane.context; }

// End the launch with the error that no barrier separates the access from that of another lane (`other` for a write),
// or that the element was never written. They do not return.
[[noreturn]] void FailLdsRead(const LdsShadow& shadow);
[[noreturn]] void FailLdsWrite(const LdsShadow& shadow, int other);

// True if the running lane may access the element as far as writes go: false if another lane wrote it last and no
// barrier has separated the two accesses. The lane is named and no reference to it is taken: the linker makes the
// addition to its address an instruction that sets no flags, which UndefinedBehaviorSanitizer's check of references
// reads.
inline bool IsAfterWrite(const LdsShadow& shadow) {
  if (shadow.write_block_epoch != running_lane.block_epoch || shadow.writer == running_lane.index) return true;
  return shadow.writer >> running_lane.wave_shift == running_lane.wave &&
         shadow.write_wave_epoch != running_lane.wave_epoch;
}

// True if the read cannot fail and changes nothing in `shadow`, as most reads do that other lanes have made before.
inline bool IsRepeatedRead(const LdsShadow& shadow) {
  if (shadow.write_block_epoch == 0 || shadow.write_block_epoch >= running_lane.block_epoch) return false;
  if (shadow.read_block_epoch != running_lane.block_epoch) return false;
  if (shadow.many_reader_waves) return true;  // no later read makes a write legal before the next barrier
  return shadow.many_readers && shadow.reader >> running_lane.wave_shift == running_lane.wave &&
         shadow.read_wave_epoch == running_lane.wave_epoch;
}

// Records any other read.
void RecordLdsRead(LdsShadow& shadow);

[[gnu::always_inline]] inline void CheckLdsRead(LdsShadow& shadow) {
  if (!IsRepeatedRead(shadow)) RecordLdsRead(shadow);
}

inline void CheckLdsWrite(LdsShadow& shadow) {
  if (!IsAfterWrite(shadow)) FailLdsWrite(shadow, shadow.writer);
  if (shadow.read_block_epoch == running_lane.block_epoch) {
    const bool unordered = shadow.reader >> running_lane.wave_shift != running_lane.wave || shadow.many_reader_waves ||
                           (shadow.read_wave_epoch == running_lane.wave_epoch &&
                            (shadow.many_readers || shadow.reader != running_lane.index));
    if (unordered) FailLdsWrite(shadow, shadow.reader);
  }
  shadow.write_block_epoch = running_lane.block_epoch;
  shadow.write_wave_epoch = running_lane.wave_epoch;
  shadow.writer = running_lane.index;
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
