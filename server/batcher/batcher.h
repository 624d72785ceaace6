// The engine: whoever runs the backend's operators, one at a time, launch after launch as the Scheduler decides.
//
// Steps of one (model layer or operator layout, input kind) that wait at the same time can share a launch, up to
// max_batch_rows rows; a long prefill goes in segments, with decodes between them. What a session gets never depends on
// what it was batched with.
// Work runs on the engine's thread. A short decode that finds nothing else to do runs on the thread that submits it,
// where that allows it: handing it over would take as long as the step.
// Thread safety: safe from any thread. Ownership: the backend and its health must outlive the batcher. Destruction
// drains what was submitted.
//
//   Batcher batcher(backend, health, {.max_queued_steps = 4096});
//   GDN_RETURN_IF_ERROR(batcher.Submit(job));
//   batcher.Post([&](Backend& b) { return b.ZeroSlot(pool, 3); }, [](absl::Status status) { ... });
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/batcher/batch_execution.h"
#include "server/batcher/step_job.h"
#include "server/health/device_health.h"
#include "server/scheduler/scheduler.h"

namespace gdn {

struct BatcherOptions {
  int32_t max_queued_steps = 4096;  // jobs that may wait
  int32_t max_batch_rows = 512;     // rows merged into one decode launch (a single job may be larger)
  absl::Duration short_step = absl::Microseconds(200);  // what a step may take on the thread that submits it
};

class Batcher {
 public:
  // What runs on a device that has failed is refused with what it failed with; who runs into that reports it to
  // `health`.
  Batcher(Backend& backend, DeviceHealth& health, const BatcherOptions& options);
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // Where a submitted step may run. On a GPU it is always the engine's thread.
  enum class Where { kEngineThread, kHereIfShort };

  // job->done is called exactly once where this is OK, with kHereIfShort maybe before it returns. RESOURCE_EXHAUSTED
  // (QUEUE_FULL), UNAVAILABLE (SERVER_DRAINING, DEVICE_FAILED).
  absl::Status Submit(StepJobPtr job, Where where = Where::kEngineThread);

  // Runs `task` on the engine's thread between batches; `done` gets its status there.
  void Post(std::function<absl::Status(Backend&)> task, std::function<void(absl::Status)> done);

  // Refuses new steps from now on and waits until the submitted ones are done, at most `timeout`. True where all are.
  bool Drain(absl::Duration timeout);
  bool draining() const;

  size_t queued_steps() const;  // jobs that wait, prefills with segments left among them

 private:
  struct Task {
    std::function<absl::Status(Backend&)> run;
    std::function<void(absl::Status)> done;
  };

  // What jobs must have in common to share a launch.
  struct GroupKey {
    const LayerWeights* weights = nullptr;
    StateLayout layout;
    InputKind kind = InputKind::kNone;
    float scale = 0;
    bool use_qk_l2norm = false;
    bool draft = false;

    friend bool operator==(const GroupKey&, const GroupKey&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const GroupKey& key) {
      return H::combine(std::move(h), key.weights, key.layout.slot_floats(), key.kind, key.scale, key.use_qk_l2norm,
                        key.draft);
    }
  };

  void EngineLoop();
  void Schedule(StepJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return scheduler_.waiting() > 0 || !tasks_.empty(); }
  void RunTask(Task& task);
  // The caller has the engine.
  void RunLaunch(const Launch& launch);

  Backend& backend_;
  DeviceHealth& health_;
  const BatcherOptions options_;
  BatchExecutor executor_;  // of whoever has the engine

  mutable absl::Mutex mu_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GroupKey, uint64_t> groups_ ABSL_GUARDED_BY(mu_);
  uint64_t groups_made_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool engine_taken_ ABSL_GUARDED_BY(mu_) = false;  // a thread runs a launch or tasks
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  std::thread engine_;  // last: it uses all of the above
};

}  // namespace gdn
