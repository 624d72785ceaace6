// A fixed set of threads for data-parallel loops.
//
// Thread safety: ParallelFor may be called from one thread at a time (one loop in flight); it must not be called from
// inside a loop's body. Ownership: joins its threads on destruction.
//
//   ThreadPool pool(4);  // the caller and three workers
//   pool.ParallelFor(heads, [&](int64_t head, int worker) { ... scratch[worker] ... });
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace gdn {

class ThreadPool {
 public:
  // `threads` >= 1 includes the calling thread: threads - 1 workers are started. `name` is the workers' name.
  explicit ThreadPool(int threads, std::string_view name = "gdn-pool");
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(index, worker) for every index in [0, count), 0 <= worker < threads(), and returns when all are done.
  // Indices are handed out dynamically: results must not depend on which worker runs which index.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int)> body);

 private:
  void WorkerLoop(int worker);
  void RunBody(int worker);
  bool Join(uint64_t& seen);  // lets a worker enter the open loop, once: sets `seen` to it; else false
  void Leave();               // a worker leaves the loop when no index is left
  void AwaitWorkers();        // the caller waits for those that joined

  // Both are written in the constructor only. may_spin_: waits spin shortly before they sleep.
  bool may_spin_ = false;
  std::vector<std::thread> workers_;

  // The loop in flight. count_, grain_ and body_ are written while no loop is open, and read by the caller and by
  // workers that joined.
  std::atomic<uint64_t> state_{0};  // generation, open, caller asleep, workers inside; see thread_pool.cc
  std::atomic<int64_t> next_{0};    // the first index not handed out
  std::atomic<int> sleepers_{0};    // raised under mu_ before a worker checks state_ for the last time
  int64_t count_ = 0;
  int64_t grain_ = 1;  // indices handed out at a time
  const absl::FunctionRef<void(int64_t, int)>* body_ = nullptr;

  // std::mutex, not absl::Mutex: ThreadSanitizer does not see the locks of a packaged Abseil.
  std::mutex mu_;
  std::condition_variable wake_;  // wakes workers: a loop has opened, or stop_
  std::condition_variable done_;  // wakes the caller: the last worker has left
  bool stop_ = false;             // guarded by mu_
};

// A pool shared by several calling threads. One loop at a time uses the workers; a concurrent loop runs in its caller.
class SharedThreadPool {
 public:
  explicit SharedThreadPool(int threads, std::string_view name = "gdn-pool") : pool_(threads, name) {}

 private:
  friend void ForEachIndex(SharedThreadPool*, int64_t, absl::FunctionRef<void(int64_t)>);
  std::mutex mu_;  // held by the caller whose loop uses the workers
  ThreadPool pool_;
};

// Runs body(index) for every index in [0, count), and returns when all are done. Uses the pool's threads; runs in order
// on the calling thread if `pool` is null, or while the pool runs another caller's loop.
void ForEachIndex(SharedThreadPool* pool, int64_t count, absl::FunctionRef<void(int64_t)> body);

}  // namespace gdn
