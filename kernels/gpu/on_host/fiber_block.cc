#include "kernels/gpu/on_host/fiber_block.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

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

using boost::context::detail::fcontext_t;
using boost::context::detail::transfer_t;

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 512 * 1024;
#else
constexpr size_t kStackBytes = 128 * 1024;
#endif
constexpr size_t kGuardBytes = 4096;
constexpr int kMaxThreads = 1024;
constexpr unsigned char kPoison = 0xff;  // every float of it is a NaN

// One stack a lane, kept for later launches; a page that faults lies beneath each.
class Stacks {
 public:
  ~Stacks() {
    for (char* stack : stacks_) munmap(stack, kGuardBytes + kStackBytes);
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

 private:
  std::vector<char*> stacks_;
};

enum class State : uint8_t { kRunnable, kAtExchange, kAtFence, kAtBarrier, kReturned };

const char* StateName(State state) {
  static constexpr const char* kNames[] = {"running", "a cross-lane call", "WaveBarrier", "SyncThreads", "its end"};
  return kNames[static_cast<size_t>(state)];
}

struct Lane {
  LaneContext context;
  fcontext_t fiber = nullptr;
  State state = State::kRunnable;
  CallSite site{"", 0};
  void* fake_stack = nullptr;
  char* stack = nullptr;
  int index = 0;
  int wave = 0;
};

struct Wave {
  int first = 0;
  int lanes = 0;
  uint32_t epoch = 1;
  int parity = 0;               // which of the two value buffers the meeting to come uses
  uint32_t values[2][64] = {};  // a lane may be one meeting ahead of its slowest peer, never two
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
  uint32_t epoch = 1;
  bool waited = false;  // one of its lanes, for the kernels before
  std::string error;
  fcontext_t scheduler = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  void* scheduler_fake_stack = nullptr;
};

thread_local Stacks stacks;
thread_local Block* block = nullptr;
thread_local Lane* here = nullptr;
thread_local uint64_t schedule_seed = 1;

void ToScheduler(bool returning) {
  __sanitizer_start_switch_fiber(returning ? nullptr : &here->fake_stack, block->scheduler_stack,
                                 block->scheduler_stack_bytes);
  const transfer_t back = boost::context::detail::jump_fcontext(block->scheduler, nullptr);
  __sanitizer_finish_switch_fiber(here->fake_stack, nullptr, nullptr);
  block->scheduler = back.fctx;
}

void LaneMain(transfer_t from) {
  __sanitizer_finish_switch_fiber(nullptr, &block->scheduler_stack, &block->scheduler_stack_bytes);
  block->scheduler = from.fctx;
  (*block->kernel)();
  here->state = State::kReturned;
  ToScheduler(/*returning=*/true);
}

void ToLane(Lane& lane) {
  here = &lane;
  running_lane.block_epoch = block->epoch;
  running_lane.wave_epoch = block->waves[lane.wave].epoch;
  running_lane.index = static_cast<uint16_t>(lane.index);
  running_lane.wave = static_cast<uint16_t>(lane.wave);
  __sanitizer_start_switch_fiber(&block->scheduler_fake_stack, lane.stack, kStackBytes);
  const transfer_t back = boost::context::detail::jump_fcontext(lane.fiber, nullptr);
  __sanitizer_finish_switch_fiber(block->scheduler_fake_stack, nullptr, nullptr);
  lane.fiber = back.fctx;
}

void Arrive(State state, CallSite site) {
  here->state = state;
  here->site = site;
  ToScheduler(/*returning=*/false);
}

std::string Describe(const Lane& lane) {
  std::string text = absl::StrCat("thread ", lane.index, " at ", StateName(lane.state));
  if (lane.state != State::kReturned) absl::StrAppend(&text, " (", lane.site.file, ":", lane.site.line, ")");
  return text;
}

// Mostly one literal.
bool SameFile(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

// True where all lanes of `count` stand at the same place as the first.
bool Agree(const Lane* lanes, int count) {
  for (int i = 1; i < count; ++i) {
    const bool same = lanes[i].state == lanes[0].state &&
                      (lanes[0].state == State::kReturned ||
                       (lanes[i].site.line == lanes[0].site.line && SameFile(lanes[i].site.file, lanes[0].site.file)));
    if (same) continue;
    block->error = absl::StrCat("lanes diverge: ", Describe(lanes[0]), ", ", Describe(lanes[i]));
    return false;
  }
  return true;
}

// Runs a wave until all its lanes are at a block barrier or have returned. False on an error.
bool RunWave(Wave& wave) {
  Lane* lanes = &block->lanes[wave.first];
  for (;;) {
    for (int i = 0; i < wave.lanes; ++i) {
      if (lanes[i].state != State::kRunnable) continue;
      ToLane(lanes[i]);
      if (!block->error.empty()) return false;
    }
    if (!Agree(lanes, wave.lanes)) return false;
    if (lanes[0].state == State::kAtBarrier || lanes[0].state == State::kReturned) return true;
    if (lanes[0].state == State::kAtFence) ++wave.epoch;
    if (lanes[0].state == State::kAtExchange) wave.parity ^= 1;
    for (int i = 0; i < wave.lanes; ++i) lanes[i].state = State::kRunnable;
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
    ++block->epoch;
    for (Lane& lane : lanes) lane.state = State::kRunnable;
  }
}

void PrepareLanes(const LaneContext& context, int threads) {
  for (int i = 0; i < threads; ++i) {
    Lane& lane = block->lanes[i];
    lane.context = context;
    lane.context.thread = {static_cast<unsigned>(i), 0, 0};
    lane.state = State::kRunnable;
    lane.stack = stacks.bottom(i);
    lane.index = i;
    lane.wave = i / block->wave_width;
    lane.fake_stack = nullptr;
    lane.fiber = boost::context::detail::make_fcontext(lane.stack + kStackBytes, kStackBytes, LaneMain);
  }
  for (size_t w = 0; w < block->waves.size(); ++w) {
    block->waves[w] = Wave{};
    block->waves[w].first = static_cast<int>(w) * block->wave_width;
    block->waves[w].lanes = std::min(block->wave_width, threads - block->waves[w].first);
  }
  block->epoch = 1;
  block->waited = false;
  running_lane.wave_shift = static_cast<uint16_t>(std::countr_zero(static_cast<unsigned>(block->wave_width)));
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

const LaneContext& Here() { return here->context; }

uint32_t WaveValues::At(int from) const {
  if (!present(from)) Fail("a cross-lane call reads a lane that is not there, lane", from);
  return values[from];
}

WaveValues Exchange(uint32_t value, int wave_width, CallSite site) {
  if (wave_width != block->wave_width) Fail("a cross-lane call is for waves of another width", wave_width);
  Wave& wave = block->waves[here->wave];
  const int parity = wave.parity;
  const int lane = here->index - wave.first;
  wave.values[parity][lane] = value;
  Arrive(State::kAtExchange, site);
  return {lane, wave.lanes, wave.values[parity]};
}

void WaveFence(CallSite site) { Arrive(State::kAtFence, site); }

void BlockBarrier(CallSite site) { Arrive(State::kAtBarrier, site); }

void NoteWait() { block->waited = true; }

void Fail(const char* what, int64_t detail) {
  block->error = absl::StrCat(what, " ", detail, "; thread ", here->index);
  ToScheduler(/*returning=*/true);
  __builtin_unreachable();
}

void FailLdsRead(const LdsShadow& shadow) {
  if (shadow.write_block_epoch == 0) {
    Fail("an LDS element is read that nothing has written; barrier epoch", block->epoch);
  }
  Fail("an LDS element is read with no barrier since it was written, by thread", shadow.writer);
}

void FailLdsWrite(const LdsShadow& shadow, int other) {
  if (!IsAfterWrite(shadow)) {
    Fail("an LDS element is written with no barrier since it was written, by thread", other);
  }
  Fail("an LDS element is written with no barrier since it was read, by thread", other);
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
