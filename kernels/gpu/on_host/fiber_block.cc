#include "kernels/gpu/on_host/fiber_block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/on_host/fiber_switch.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
// What AddressSanitizer wants to be told of fibers; nobody listens in other builds.
// NOLINTBEGIN(bugprone-reserved-identifier): its own names
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
inline void __asan_unpoison_memory_region(const void*, size_t) {}
// NOLINTEND(bugprone-reserved-identifier)
#endif

namespace gdn::gpu::simt {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 512 * 1024;
#else
constexpr size_t kStackBytes = 128 * 1024;
#endif
constexpr size_t kGuardBytes = 4096;
constexpr size_t kPageBytes = 4096;
constexpr size_t kCacheLineBytes = 64;
constexpr int kMaxThreads = 1024;
constexpr unsigned char kPoison = 0xff;  // every float of it is a NaN

// One stack for each lane, kept for later launches, above a page that faults. The tops lie at different places in their
// pages. At equal places the frames of a wave would share a few lines of the processor's first cache.
class Stacks {
 public:
  ~Stacks() {
    for (char* stack : stacks_) {
      // A lane's last frames never return, and unmapping does not remove their red zones: whatever is mapped here next
      // would have them.
      __asan_unpoison_memory_region(stack, kGuardBytes + kStackBytes);
      munmap(stack, kGuardBytes + kStackBytes);
    }
  }
  char* bottom(size_t i) {
    while (stacks_.size() <= i) {
      void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
      mprotect(memory, kGuardBytes, PROT_NONE);
      stacks_.push_back(static_cast<char*>(memory));
    }
    return stacks_[i] + kGuardBytes;
  }
  char* top(size_t i) { return bottom(i) + kStackBytes - i * kCacheLineBytes % kPageBytes; }

 private:
  std::vector<char*> stacks_;
};

enum class State : uint8_t { kRunning, kAtExchange, kAtFence, kAtBarrier, kReturned };

const char* StateName(State state) {
  static constexpr const char* kNames[] = {"running", "a cross-lane call", "WaveBarrier", "SyncThreads", "its end"};
  return kNames[static_cast<size_t>(state)];
}

struct Wave;

// A copy of CopyAsync16, an element of it.
struct LdsCopy {
  float* to;
  LdsShadow* shadow;
  float value;
};

// All that a switch reads lies in one line of the processor's cache.
struct alignas(kCacheLineBytes) Lane {
  Fiber fiber;
  CallSite site{"", 0};
  Wave* wave = nullptr;
  int index = 0;      // in the block
  int in_wave = 0;    // the number in the wave
  bool last = false;  // of the wave
  State state = State::kRunning;
  LaneContext context;
  void* fake_stack = nullptr;
  char* stack = nullptr;
  std::vector<LdsCopy> copies;      // on their way, oldest first
  std::vector<size_t> copy_groups;  // the number of copies in each committed group
};

struct Wave {
  Lane* first = nullptr;
  int lanes = 0;
  uint64_t epoch = 1;
  int parity = 0;               // which of the two value buffers the meeting to come uses
  uint32_t values[2][64] = {};  // a lane may be one meeting ahead of its slowest peer, never two
  bool agrees = true;           // every lane that has run since the last meeting stands where the wave's first one does
};

struct SharedBlock {
  void (*construct)(void*);
  void* memory;
  std::align_val_t alignment;
};

struct Block {
  const std::function<void()>* kernel = nullptr;
  int wave_width = 0;
  std::vector<Lane> lanes;
  std::vector<Wave> waves;
  std::vector<SharedBlock> shared;
  uint64_t epoch = 1;
  bool waited = false;  // one of its lanes, for the kernels before
  std::string error;
  Fiber scheduler;
  bool first = false;  // the lane that begins now is its wave's first one, to which the scheduler has switched
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  void* scheduler_fake_stack = nullptr;
};

thread_local Stacks stacks;
thread_local Block* block = nullptr;
thread_local Lane* here = nullptr;
thread_local uint64_t schedule_seed = 1;

void Name(Lane& lane) {
  here = &lane;
  running_lane.context = &lane.context;
  running_lane.now = running_lane.epochs | uint64_t{static_cast<unsigned>(lane.index)} << kLdsLaneShift;
}

int64_t LaneOf(uint64_t access) { return static_cast<int64_t>((access & kLdsLane) >> kLdsLaneShift); }

// From a lane to the scheduler. `returning`: the lane's stack is not needed any more.
void ToScheduler(bool returning) {
  Lane* const lane = here;
  __sanitizer_start_switch_fiber(returning ? nullptr : &lane->fake_stack, block->scheduler_stack,
                                 block->scheduler_stack_bytes);
  SwitchFiber(lane->fiber, block->scheduler);
  __sanitizer_finish_switch_fiber(lane->fake_stack, nullptr, nullptr);
}

// From a lane to the next one of its wave, or from the last one to the scheduler.
void ToNextLane(bool returning) {
  Lane* const lane = here;
  if (lane->last) return ToScheduler(returning);
  Lane* const next = lane + 1;
  Name(*next);
  __sanitizer_start_switch_fiber(returning ? nullptr : &lane->fake_stack, next->stack, kStackBytes);
  SwitchFiber(lane->fiber, next->fiber);
  __sanitizer_finish_switch_fiber(lane->fake_stack, nullptr, nullptr);
}

// True if `lane` stands where `first` does.
bool SamePlace(const Lane& lane, const Lane& first) {
  if (lane.state != first.state) return false;
  if (lane.state == State::kReturned) return true;
  // The names of files are mostly one literal.
  return lane.site.line == first.site.line &&
         (lane.site.file == first.site.file || std::strcmp(lane.site.file, first.site.file) == 0);
}

// The running lane has come to `state`.
void Arrive(State state, CallSite site, bool returning = false) {
  Lane* const lane = here;
  lane->state = state;
  lane->site = site;
  if (lane->in_wave != 0 && !SamePlace(*lane, *lane->wave->first)) lane->wave->agrees = false;
  ToNextLane(returning);
}

void LaneMain() {
  const void* stack = nullptr;  // of the context before
  size_t stack_bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &stack_bytes);
  if (std::exchange(block->first, false)) {
    block->scheduler_stack = stack;
    block->scheduler_stack_bytes = stack_bytes;
  }
  (*block->kernel)();
  if (!here->copies.empty())
    Fail("a lane ends with copies to LDS on their way:", static_cast<int64_t>(here->copies.size()));
  Arrive(State::kReturned, {"", 0}, /*returning=*/true);
}

// From the scheduler to each lane of the wave in turn, and back. If a lane fails, the lanes after it do not run.
void ToLanes(const Wave& wave) {
  Lane& lane = *wave.first;
  running_lane.epochs = block->epoch << kLdsBlockEpochShift | wave.epoch << kLdsWaveEpochShift;
  Name(lane);
  __sanitizer_start_switch_fiber(&block->scheduler_fake_stack, lane.stack, kStackBytes);
  block->first = true;
  SwitchFiber(block->scheduler, lane.fiber);
  __sanitizer_finish_switch_fiber(block->scheduler_fake_stack, nullptr, nullptr);
}

std::string Describe(const Lane& lane) {
  std::string text = absl::StrCat("thread ", lane.index, " at ", StateName(lane.state));
  if (lane.state != State::kReturned) absl::StrAppend(&text, " (", lane.site.file, ":", lane.site.line, ")");
  return text;
}

// True if all lanes of `count` stand at the same place as the first.
bool Agree(const Lane* lanes, int count) {
  for (int i = 1; i < count; ++i) {
    if (SamePlace(lanes[i], lanes[0])) continue;
    block->error = absl::StrCat("lanes diverge: ", Describe(lanes[0]), ", ", Describe(lanes[i]));
    return false;
  }
  return true;
}

// Counts a barrier. False if there were too many to tell them apart.
bool Next(uint64_t& epoch) {
  if (++epoch <= kMostEpochs) return true;
  block->error = absl::StrCat("a block has more than ", kMostEpochs, " barriers: it may run for ever");
  return false;
}

// Runs a wave until all its lanes are at a block barrier or have returned. False on an error.
bool RunWave(Wave& wave) {
  Lane* const lanes = wave.first;
  for (;;) {
    ToLanes(wave);
    if (!block->error.empty()) return false;
    if (!wave.agrees) return Agree(lanes, wave.lanes);
    if (lanes[0].state == State::kAtBarrier || lanes[0].state == State::kReturned) return true;
    if (lanes[0].state == State::kAtFence && !Next(wave.epoch)) return false;
    if (lanes[0].state == State::kAtExchange) wave.parity ^= 1;
  }
}

// Runs the block's waves from barrier to barrier. False on an error.
bool RunBlock(std::mt19937_64& random) {
  std::vector<int> order(block->waves.size());
  std::iota(order.begin(), order.end(), 0);
  for (;;) {
    std::shuffle(order.begin(), order.end(), random);
    for (int w : order) {
      if (!RunWave(block->waves[w])) return false;
    }
    // Waves that meet at a barrier may come from different source lines only by mistake.
    std::vector<Lane>& lanes = block->lanes;
    if (!Agree(lanes.data(), static_cast<int>(lanes.size()))) return false;
    if (lanes[0].state == State::kReturned) return true;
    if (!Next(block->epoch)) return false;
  }
}

void PrepareLanes(const LaneContext& context, int threads) {
  for (int i = 0; i < threads; ++i) {
    Lane& lane = block->lanes[i];
    lane.context = context;
    lane.context.thread = {static_cast<unsigned>(i), 0, 0};
    lane.state = State::kRunning;
    lane.stack = stacks.bottom(i);
    lane.index = i;
    lane.wave = &block->waves[i / block->wave_width];
    lane.in_wave = i % block->wave_width;
    lane.last = i + 1 == threads || lane.in_wave + 1 == block->wave_width;
    lane.fake_stack = nullptr;
    lane.copies.clear();
    lane.copy_groups.clear();
    lane.fiber = MakeFiber(stacks.top(i), kStackBytes - kPageBytes, LaneMain);
  }
  for (size_t w = 0; w < block->waves.size(); ++w) {
    const int first = static_cast<int>(w) * block->wave_width;
    block->waves[w] = Wave{};
    block->waves[w].first = &block->lanes[first];
    block->waves[w].lanes = std::min(block->wave_width, threads - first);
  }
  block->epoch = 1;
  block->waited = false;
  running_lane.other_waves = kLdsLane & ~((static_cast<uint64_t>(block->wave_width) << kLdsLaneShift) - 1);
}

void ReleaseShared() {
  for (const SharedBlock& shared : block->shared) ::operator delete(shared.memory, shared.alignment);
  block->shared.clear();
}

// Fibers that did not return leave their frames' red zones behind.
void AbandonLanes() {
  for (const Lane& lane : block->lanes) __asan_unpoison_memory_region(lane.stack, kStackBytes);
}

}  // namespace

constinit thread_local RunningLane running_lane;

#if defined(__x86_64__)
const bool has_fma = __builtin_cpu_supports("fma") != 0;
#else
const bool has_fma = false;
#endif

WaveValues Exchange(uint32_t value, int wave_width, CallSite site) {
  if (wave_width != block->wave_width) Fail("a cross-lane call is for waves of another width", wave_width);
  const Lane& lane = *here;
  Wave& wave = *lane.wave;
  uint32_t* const values = wave.values[wave.parity];
  values[lane.in_wave] = value;
  Arrive(State::kAtExchange, site);
  return {lane.in_wave, wave.lanes, values};
}

void WaveFence(CallSite site) { Arrive(State::kAtFence, site); }

void BlockBarrier(CallSite site) { Arrive(State::kAtBarrier, site); }

void QueueCopy(float& to, LdsShadow& shadow, float value) {
  CheckLdsWrite(shadow);
  shadow.write = 0;
  here->copies.push_back({&to, &shadow, value});
}

void CommitCopies() {
  size_t before = 0;
  for (const size_t group : here->copy_groups) before += group;
  here->copy_groups.push_back(here->copies.size() - before);
}

void WaitForCopies(int newest) {
  Lane& lane = *here;
  while (lane.copy_groups.size() > static_cast<size_t>(newest)) {
    const auto end = lane.copies.begin() + static_cast<ptrdiff_t>(lane.copy_groups.front());
    for (auto copy = lane.copies.begin(); copy != end; ++copy) {
      CheckLdsWrite(*copy->shadow);
      *copy->to = copy->value;
    }
    lane.copies.erase(lane.copies.begin(), end);
    lane.copy_groups.erase(lane.copy_groups.begin());
  }
}

void NoteWait() { block->waited = true; }

void Fail(const char* what, int64_t detail) {
  block->error = absl::StrCat(what, " ", detail, "; thread ", here->index);
  ToScheduler(/*returning=*/true);
  __builtin_unreachable();
}

void RecordLdsRead(LdsShadow& shadow) {
  if (shadow.write == 0 || !IsAfterWrite(shadow)) FailLdsRead(shadow);
  const uint64_t apart = shadow.read ^ running_lane.now;
  if ((apart & kLdsBlockEpoch) != 0) {
    shadow.read = running_lane.now;
  } else if ((apart & running_lane.other_waves) != 0) {
    shadow.read |= kLdsManyWaves;
  } else if ((apart & kLdsWaveEpoch) != 0) {
    shadow.read = running_lane.now | (shadow.read & kLdsManyWaves);
  } else if ((apart & kLdsLane) != 0) {
    shadow.read |= kLdsManyReaders;
  }
}

void FailLdsRead(const LdsShadow& shadow) {
  if (shadow.write == 0) {
    Fail("an LDS element is read that nothing has written; barrier epoch", static_cast<int64_t>(block->epoch));
  }
  Fail("an LDS element is read with no barrier since it was written, by thread", LaneOf(shadow.write));
}

void FailLdsWrite(const LdsShadow& shadow, uint64_t other) {
  if (!IsAfterWrite(shadow)) {
    Fail("an LDS element is written with no barrier since it was written, by thread", LaneOf(other));
  }
  Fail("an LDS element is written with no barrier since it was read, by thread", LaneOf(other));
}

void* BlockSharedMemory(size_t bytes, size_t alignment, void (*construct)(void*)) {
  for (const SharedBlock& shared : block->shared) {
    if (shared.construct == construct) return shared.memory;
  }
  const std::align_val_t align{std::max<size_t>(alignment, 64)};
  void* memory = ::operator new(bytes, align);
  std::memset(memory, kPoison, bytes);
  construct(memory);
  block->shared.push_back({construct, memory, align});
  return memory;
}

absl::Status RunGrid(const char* name, const Dim3& grid, int threads, int wave_width,
                     const std::function<void()>& kernel, bool early) {
  if (threads < 1 || threads > kMaxThreads) {
    return absl::InternalError(absl::StrCat(name, ": ", threads, " threads a block; expected 1 to ", kMaxThreads));
  }
  Block running;
  running.kernel = &kernel;
  running.wave_width = wave_width;
  running.lanes.resize(threads);
  running.waves.resize((threads + wave_width - 1) / wave_width);
  block = &running;

  std::vector<uint64_t> order(uint64_t{grid.x} * grid.y * grid.z);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(schedule_seed);
  std::shuffle(order.begin(), order.end(), random);
  for (uint64_t index : order) {
    const LaneContext context{
        .thread = {0, 0, 0},
        .block = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
                  static_cast<unsigned>(index / grid.x / grid.y)},
        .block_dim = {static_cast<unsigned>(threads), 1, 1},
        .grid_dim = grid};
    PrepareLanes(context, threads);
    bool ok = RunBlock(random);
    ReleaseShared();
    if (ok && early && !running.waited) {
      running.error = "a block ends that never called WaitForPriorKernels, though Grid::early is set";
      ok = false;
    }
    if (ok) continue;
    AbandonLanes();
    block = nullptr;
    return absl::InternalError(absl::StrCat(name, ": ", running.error, "; block (", context.block.x, ", ",
                                            context.block.y, ", ", context.block.z, "), waves of ", wave_width));
  }
  block = nullptr;
  return absl::OkStatus();
}

void SetScheduleSeed(uint64_t seed) { schedule_seed = seed; }

}  // namespace gdn::gpu::simt
