// The engine: one thread that owns the backend's operators, merges waiting decode steps into batches and runs prefills
// in segments.
//
// Decodes of one (model layer or operator layout, input kind) that wait at the same time run as one batch, up to
// max_batch rows; between two segments of a prefill the decodes that wait come first, so a long prompt delays a decode
// by one segment at most. What a session gets never depends on what it was batched with.
// Thread safety: safe from any thread. Ownership: the backend and its health must outlive the batcher. Destruction
// drains what was submitted.
//
//   Batcher batcher(backend, health, {.max_queued_steps = 4096});
//   GDN_RETURN_IF_ERROR(batcher.Submit(job));
//   absl::Status status = batcher.RunOnEngine([&](Backend& b) { return b.ZeroSlot(pool, 3); });
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/batcher/batch_execution.h"
#include "server/batcher/step_job.h"
#include "server/health/device_health.h"

namespace gdn {

struct BatcherOptions {
  int32_t max_queued_steps = 4096;  // jobs that may wait
  int32_t max_batch_rows = 512;     // rows merged into one decode batch (a single job may be larger)
};

class Batcher {
 public:
  // What runs on a device that has failed is refused with what it failed with; who runs into that reports it to
  // `health`.
  Batcher(Backend& backend, DeviceHealth& health, const BatcherOptions& options);
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // job->done is called exactly once where this is OK. RESOURCE_EXHAUSTED (QUEUE_FULL), UNAVAILABLE (SERVER_DRAINING,
  // DEVICE_FAILED).
  absl::Status Submit(StepJobPtr job);

  // Runs `task` on the engine's thread between batches; `done` gets its status there.
  void Post(std::function<absl::Status(Backend&)> task, std::function<void(absl::Status)> done);

  // Refuses new steps from now on and waits until the submitted ones are done, at most `timeout`. True where all are.
  bool Drain(absl::Duration timeout);
  bool draining() const;

  size_t queued_steps() const;  // jobs that wait; the batch and the prefill in progress are not among them

 private:
  struct Task {
    std::function<absl::Status(Backend&)> run;
    std::function<void(absl::Status)> done;
  };

  void EngineLoop();
  bool IdleLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves the first waiting decode job and those that can run with it out of the queue.
  std::vector<StepJobPtr> TakeDecodeBatchLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Backend& backend_;
  DeviceHealth& health_;
  const BatcherOptions options_;
  BatchExecutor executor_;  // the engine thread's alone

  mutable absl::Mutex mu_;
  std::deque<StepJobPtr> decodes_ ABSL_GUARDED_BY(mu_);
  std::deque<StepJobPtr> prefills_ ABSL_GUARDED_BY(mu_);
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  std::thread engine_;  // last: it uses all of the above
};

}  // namespace gdn
