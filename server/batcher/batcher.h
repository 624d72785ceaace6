// The engine: whoever runs the backend's operators, one at a time, launch after launch as the Scheduler decides.
//
// Steps of one (model layer or operator layout, input kind) that wait at the same time can share a launch, up to
// max_batch_rows rows; a long prefill goes in segments, with decodes between them. What a session gets never depends on
// what it was batched with.
// Work is issued by the engine's thread. Where the device works behind the host, two launches are on their way at a
// time: while one runs, the next is copied in and the last is answered, by a thread of its own. The second is issued
// only shortly before the first is expected to end, so that what arrives meanwhile can still be part of it.
// A short decode that finds nothing else to do runs on the thread that submits it, where that allows it: handing it
// over would take as long as the step.
// Thread safety: safe from any thread. Ownership: the backend and its health must outlive the batcher. Destruction
// drains what was submitted.
//
//   Batcher batcher(backend, health, {.max_queued_steps = 4096});
//   GDN_RETURN_IF_ERROR(batcher.Submit(job));
//   batcher.Post([&](Backend& b) { return b.ZeroSlot(pool, 3); }, [](absl::Status status) { ... });
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "server/batcher/batch_execution.h"
#include "server/batcher/repliers.h"
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

  // Of the account of this name (ByteAccount) in the device's time, above 0.
  void SetWeight(const std::string& account, double weight);

  // Where a submitted step may run.
  enum class Where { kEngineThread, kHereIfShort };

  // job->done is called exactly once where this is OK, with kHereIfShort maybe before it returns. RESOURCE_EXHAUSTED
  // (QUEUE_FULL), UNAVAILABLE (SERVER_DRAINING, DEVICE_FAILED).
  absl::Status Submit(StepJobPtr job, Where where = Where::kEngineThread);

  // The right to submit one job, which is not refused then; given up on destruction.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept : batcher_(std::exchange(other.batcher_, nullptr)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(batcher_, other.batcher_);
      return *this;
    }
    ~Place();
    void Submit(StepJobPtr job, Where where) &&;

   private:
    friend class Batcher;
    explicit Place(Batcher* batcher) : batcher_(batcher) {}
    Batcher* batcher_ = nullptr;
  };
  // Errors of Submit.
  absl::StatusOr<Place> TakePlace();

  // Runs `task` on the engine's thread between batches; `done` gets its status there.
  void Post(std::function<absl::Status(Backend&)> task, std::function<void(absl::Status)> done);

  // Refuses new steps from now on.
  void RefuseSteps();
  // The same, and waits until the submitted ones are done, at most `timeout`. True where all are.
  bool Drain(absl::Duration timeout);
  bool draining() const;

  // OK, or what the device failed with, for good.
  absl::Status device_status() const { return health_.status(); }
  const BatchStats& stats() const { return executor_.stats(); }
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
    std::array<DType, kMaxStepFields> dtypes{};
    DType output_dtype = DType::kF32;
    PrefillPath path = PrefillPath::kScan;  // of prefills
    float scale = 0;
    bool use_qk_l2norm = false;
    float max_beta = 0;
    bool draft = false;
    bool tree = false;  // some of a draft's rows: beside them chains would run as paths

    friend bool operator==(const GroupKey&, const GroupKey&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const GroupKey& key) {
      return H::combine(std::move(h), key.weights, key.layout.slot_floats(), key.kind, key.dtypes, key.output_dtype,
                        key.path, key.scale, key.use_qk_l2norm, key.max_beta, key.draft, key.tree);
    }
  };

  // A launch that was chosen, and where its bytes go.
  struct Chosen {
    Launch launch;
    LaunchLane* lane = nullptr;
  };

  absl::Status CheckTakesSteps() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Enqueue(StepJobPtr job, Where where, bool has_place);
  void EngineLoop();
  void EndLoop();
  void Schedule(StepJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return scheduler_.waiting() > 0 || !tasks_.empty(); }
  // Whether the engine's thread has something to do now.
  bool MayIssue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !free_lanes_.empty() && scheduler_.waiting() > 0 && !nothing_may_run_;
  }
  // Waits until the launch that runs is expected to end soon.
  void AwaitLastMoment() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Chosen Choose(bool prefills) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTask(Task& task);
  // Waits for a launch, ends its steps and answers their calls.
  void End(std::unique_ptr<IssuedLaunch> issued);
  // Gives a launch that was issued to the ending thread.
  void PassOn(std::unique_ptr<IssuedLaunch> issued);
  void Answer(StepJobPtr job);
  // Counts a launch's segments as run; the prefills that have ended with it.
  std::vector<StepJobPtr> EndSegments(const IssuedLaunch& issued) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Backend& backend_;
  DeviceHealth& health_;
  const BatcherOptions options_;
  const bool runs_behind_;  // the device works behind the host
  BatchExecutor executor_;
  std::array<LaunchLane, 2> lanes_;

  mutable absl::Mutex mu_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GroupKey, uint64_t> groups_ ABSL_GUARDED_BY(mu_);
  uint64_t groups_made_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool engine_taken_ ABSL_GUARDED_BY(mu_) = false;  // a thread issues a launch or runs tasks
  std::vector<LaunchLane*> free_lanes_ ABSL_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<IssuedLaunch>> issued_ ABSL_GUARDED_BY(mu_);  // for the ending thread
  int32_t to_be_ended_ ABSL_GUARDED_BY(mu_) = 0;                           // launches that it has, or will get
  std::atomic<bool> any_issued_{false};                                    // there are some in issued_
  int32_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;                            // jobs that have ended, with the repliers
  int32_t places_ ABSL_GUARDED_BY(mu_) = 0;                                // that were taken and not used yet
  int32_t on_their_way_ ABSL_GUARDED_BY(mu_) = 0;                          // launches whose steps have not all ended
  absl::Duration expected_time_ ABSL_GUARDED_BY(mu_);  // of the launches that were chosen and have not run
  SteadyTime expected_end_ ABSL_GUARDED_BY(mu_);       // of the last one that was chosen
  absl::Duration issue_time_ ABSL_GUARDED_BY(mu_);     // of the longest launches of late
  bool nothing_may_run_ ABSL_GUARDED_BY(mu_) = false;  // of what waits, until something changes
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Last: they use all of the above. Only the engine is there where the device does not work behind the host.
  std::optional<Repliers> repliers_;
  std::thread ender_;
  std::thread engine_;
};

}  // namespace gdn
