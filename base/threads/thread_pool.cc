#include "base/threads/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <string>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include "base/threads/processors.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

// state_: generation in the high 32 bits, then one bit each for "open" and "caller asleep", then the number of workers
// inside. A worker enters by raising that number while the open bit stands; the caller closes the loop when no index is
// left and returns when nobody is inside. A worker that comes late finds the loop closed and touches nothing of it.
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kCallerAsleep = uint64_t{1} << 30;
constexpr uint64_t kInsideMask = kCallerAsleep - 1;
constexpr int kGenerationShift = 32;

constexpr uint64_t Generation(uint64_t state) { return state >> kGenerationShift; }
constexpr bool IsOpen(uint64_t state) { return (state & kOpen) != 0; }

// Long enough to span the gap between two operators of a step, short enough not to be seen on an idle machine.
constexpr auto kSpinTime = std::chrono::microseconds(20);
// Pieces a thread gets of a long loop: enough to even out, few enough that handing out costs nothing.
constexpr int64_t kPiecesPerThread = 16;

inline void CpuPause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// True as soon as `ready()` is; false when the time is over.
template <typename Ready>
bool SpinUntil(bool may_spin, Ready ready) {
  if (ready()) return true;
  if (!may_spin) return false;
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      CpuPause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

// Spinning threads that outnumber the processors would keep the working ones from running.
bool MaySpin(int threads) { return threads <= AvailableProcessors(); }

}  // namespace

ThreadPool::ThreadPool(int threads, std::string_view name) {
  workers_.reserve(static_cast<size_t>(std::max(threads, 1) - 1));
  may_spin_ = MaySpin(threads);
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker, name = std::string(name)] {
      NameThisThread(name);
      WorkerLoop(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::unique_lock lock(mu_);
    stop_ = true;
    wake_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int)> body) {
  if (count <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  count_ = count;
  grain_ = std::max<int64_t>(1, count / (threads() * kPiecesPerThread));
  body_ = &body;
  next_.store(0, std::memory_order_relaxed);
  const uint64_t generation = Generation(state_.load(std::memory_order_relaxed)) + 1;
  // Sequentially consistent with the workers' raising of sleepers_: either this sees the sleeper, or the sleeper sees
  // the loop.
  state_.store(generation << kGenerationShift | kOpen, std::memory_order_seq_cst);
  const int64_t sleepers = sleepers_.load(std::memory_order_seq_cst);
  if (sleepers > 0) {
    std::unique_lock lock(mu_);
    for (int64_t i = std::min(sleepers, count - 1); i > 0; --i) wake_.notify_one();
  }
  RunBody(/*worker=*/0);
  AwaitWorkers();
}

void ThreadPool::RunBody(int worker) {
  const auto& body = *body_;
  while (true) {
    // Which thread runs an index is open, so no order is needed here; joining and leaving order the body's memory.
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    const int64_t end = std::min(begin + grain_, count_);
    for (int64_t i = begin; i < end; ++i) body(i, worker);
  }
}

bool ThreadPool::Join(uint64_t& seen) {
  uint64_t state = state_.load(std::memory_order_seq_cst);
  while (IsOpen(state) && Generation(state) != seen) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      seen = Generation(state);
      return true;
    }
  }
  return false;
}

void ThreadPool::Leave() {
  const uint64_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & kCallerAsleep) != 0 && (before & kInsideMask) == 1) {
    std::unique_lock lock(mu_);
    done_.notify_one();
  }
}

void ThreadPool::AwaitWorkers() {
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto nobody_inside = [this] { return (state_.load(std::memory_order_acquire) & kInsideMask) == 0; };
  if (SpinUntil(may_spin_, nobody_inside)) return;
  std::unique_lock lock(mu_);
  // The worker that sees this bit as it leaves takes mu_, which is free only inside the wait.
  state_.fetch_or(kCallerAsleep, std::memory_order_acq_rel);
  while (!nobody_inside()) done_.wait(lock);
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  while (true) {
    if (!SpinUntil(may_spin_, [this, &seen] { return Join(seen); })) {
      std::unique_lock lock(mu_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      bool joined = false;
      while (!stop_ && !(joined = Join(seen))) wake_.wait(lock);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      if (!joined) return;
    }
    RunBody(worker);
    Leave();
  }
}

void ForEachIndex(SharedThreadPool* pool, int64_t count, absl::FunctionRef<void(int64_t)> body) {
  if (pool != nullptr && count > 1) {
    if (const std::unique_lock lock(pool->mu_, std::try_to_lock); lock.owns_lock()) {
      return pool->pool_.ParallelFor(count, [&body](int64_t index, int /*worker*/) { body(index); });
    }
  }
  for (int64_t index = 0; index < count; ++index) body(index);
}

}  // namespace gdn
