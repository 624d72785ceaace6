// An executor with threads of its own, and one more thread for its timers. The executor of production.
//
// Flows run in the order in which they are posted, on whichever thread is free. A flow that blocks its thread keeps
// others from running, so blocking work belongs on a TaskQueueExecutor (base/task/task_queue_executor.h).
// Thread safety: from any thread. Ownership: joins its threads on destruction. The task groups on it must have ended
// then; otherwise the process ends with a message, because their flows could never go on.
//
//   ThreadExecutor executor({.name = "gdn-flows", .threads = 2});
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/task/executor.h"
#include "base/task/timers.h"
#include "base/threads/steady_clock.h"

namespace gdn {

struct ThreadExecutorOptions {
  // Name of its threads, at most 15 characters; the timers' thread is called "gdn-timers".
  std::string name = "gdn-flows";
  int threads = 2;
};

class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(const ThreadExecutorOptions& options);
  ~ThreadExecutor() override;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  void Post(Flow& flow) override;
  void SetTimer(Timer& timer) override;
  void ClearTimer(Timer& timer) override;

 private:
  void RunFlows();
  void RunTimers();

  std::mutex mu_;
  std::condition_variable posted_;
  FlowQueue flows_;    // posted flows that no thread has taken; guarded by mu_
  bool stop_ = false;  // the threads are to end; guarded by mu_

  std::mutex timers_mu_;
  std::condition_variable sooner_;                      // a timer is due before wakes_at_, or timers_stop_
  Timers timers_;                                       // timers that are set; guarded by timers_mu_
  SteadyTime wakes_at_ = SteadyTime::InfiniteFuture();  // when the timers' thread looks again; guarded by timers_mu_
  bool timers_stop_ = false;                            // the timers' thread is to end; guarded by timers_mu_

  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace gdn
