// The engine: issues the backend's operators, launch after launch, as the Scheduler decides.
//
// Steps of one (model layer or operator layout, input kind) that wait at the same time can share a launch, up to
// max_batch_rows rows; a long prefill runs in segments, with decodes between them. A session's results never depend on
// the steps that it was batched with. The engine's thread issues the work. If the device works behind the host, two
// launches are on their way at a time: while one runs, the next is copied in and the last is answered, by a thread of
// its own. The second is issued only shortly before the first is expected to end, so that steps that arrive meanwhile
// can still join it. The inputs of prefills are sent before that, and decodes that arrive meanwhile pass them, as a
// third launch. If the engine is idle and the submitter allows it, a short decode runs on the thread that submits it,
// because handing it over would take as long as the step.
// Thread safety: safe from any thread. Ownership: the backend and its health must outlive the batcher. The destructor
// first runs all submitted jobs.
//
//   Batcher batcher(backend, health, {.max_queued_steps = 4096});
//   GDN_RETURN_IF_ERROR(batcher.Submit(job));
//   const auto zero = [&](Backend& b) { return b.ZeroSlot(pool, 3); };
//   GDN_CO_RETURN_IF_ERROR(co_await batcher.Run(zero));
#pragma once

#include <array>
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/task/executor.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "base/threads/steady_clock.h"
#include "server/batcher/batch_execution.h"
#include "server/batcher/step_job.h"
#include "server/health/device_health.h"
#include "server/scheduler/scheduler.h"

namespace gdn {

struct BatcherOptions {
  int32_t max_queued_steps = 4096;  // most jobs that may wait, with taken places; more are refused with QUEUE_FULL
  int32_t max_batch_rows = 512;     // most rows merged into one decode launch (a single job may have more)
  absl::Duration short_step = absl::Microseconds(200);  // longest estimated step that runs on the submitting thread
};

class Batcher {
 public:
  // Work for a failed device is refused with the error of the failure. The engine reports failures to `health`. Both
  // references must outlive the batcher.
  Batcher(Backend& backend, DeviceHealth& health, const BatcherOptions& options);
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // Sets the weight of this account (ByteAccount::name) in sharing the device's time. `weight` is above 0. Once any
  // weight is set, all accounts without one have weight 1 together.
  void SetWeight(const std::string& account, double weight);

  // Threads that a submitted step may run on: the engine's only, or also the thread that submits it (see Submit).
  enum class Where { kEngineThread, kHereIfShort };

  // Queues a job. If this returns OK, the job ends in job->done exactly once. With kHereIfShort, a decode that finds
  // the engine idle may be issued on the caller's thread; a short one may also end before this returns.
  // RESOURCE_EXHAUSTED (QUEUE_FULL), UNAVAILABLE (SERVER_DRAINING, DEVICE_FAILED).
  absl::Status Submit(StepJobPtr job, Where where = Where::kEngineThread);

  // The right to submit one job, which cannot be refused any more. The destructor gives it up. Must not outlive the
  // batcher. A moved-from or default place holds no right and must not submit.
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
  // Takes the right to submit one job, before the caller does work that a refusal would waste. Errors of Submit.
  absl::StatusOr<Place> TakePlace();

  // Awaiter of Run: work that waits for the engine's thread. It lives in the coroutine frame of the flow that waits.
  class [[nodiscard]] Work {
   public:
    Work(Batcher& batcher, absl::FunctionRef<absl::Status(Backend&)> run) : batcher_(batcher), run_(run) {}
    bool await_ready() const { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> waiting) {
      flow_ = &waiting.promise().flow();
      flow_->SuspendAt(waiting);
      batcher_.Enqueue(*this);  // from here on the flow may run on another thread and destroy this
    }
    absl::Status await_resume() { return std::move(status_); }

   private:
    friend class Batcher;
    Batcher& batcher_;
    const absl::FunctionRef<absl::Status(Backend&)> run_;
    absl::Status status_;
    Flow* flow_ = nullptr;
  };
  // Runs `work` on the engine's thread between batches, in the order of these calls, and waits until the device has
  // done it. co_await the result at once: the flow continues on its own executor, and `work` must live until then.
  // Gives the status of `work`, or UNAVAILABLE (DEVICE_FAILED).
  Work Run(absl::FunctionRef<absl::Status(Backend&)> work) { return Work(*this, work); }

  // Refuses new steps from now on (SERVER_DRAINING). Places that are taken already may still submit.
  void RefuseSteps();
  // Refuses new steps and blocks, at most `timeout`, until all submitted ones and all taken places are done. Returns
  // true if they are.
  bool Drain(absl::Duration timeout);
  bool draining() const;

  // OK, or the error that the device failed with. A failure is permanent.
  absl::Status device_status() const { return health_.status(); }
  const BatchStats& stats() const { return executor_.stats(); }
  size_t queued_steps() const;  // waiting jobs, including prefills with segments left

 private:
  // Properties that must be equal for jobs to share a launch.
  struct GroupKey {
    const LayerWeights* weights = nullptr;
    StateLayout layout;
    StepShape shape;
    PrefillPath path = PrefillPath::kScan;  // kernels of a prefill; kScan for decodes
    bool draft = false;
    bool tree = false;  // some rows of the draft are trees; chains in the same launch would run as trees

    friend bool operator==(const GroupKey&, const GroupKey&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const GroupKey& key) {
      return H::combine(std::move(h), key.weights, key.layout.slot_floats(), key.shape, key.path, key.draft, key.tree);
    }
  };

  // A chosen launch, and the lane for its inputs and outputs.
  struct Chosen {
    Launch launch;
    LaunchLane* lane = nullptr;
  };

  absl::Status CheckTakesSteps() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Enqueue(StepJobPtr job, Where where, bool has_place);
  void Enqueue(Work& work);
  void EngineLoop();
  void EndLoop();
  void Schedule(StepJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return scheduler_.waiting() > 0 || !works_.empty(); }
  // True if a launch can be issued now: a lane is free besides the one of LetDecodesPass, and a step may run.
  bool MayIssue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return free_lanes_.size() > 1 && scheduler_.waiting() > 0 && !nothing_may_run_;
  }
  // Blocks, with mu_ released, until the launches on their way are expected to end soon, none is, or work of Run
  // arrives. `not_issued`: how many of them are not on the device yet, and take `estimated` there. `issue_time`: what
  // the next launch needs to be there.
  void AwaitLastMoment(size_t not_issued, absl::Duration estimated, absl::Duration issue_time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits, with the inputs of a launch of prefills sent, for the last moment to issue it, and issues a launch of
  // decodes first if some wait whose turn it is. So a decode that comes while the inputs are sent need not wait for the
  // prefills too. Returns how long it took.
  absl::Duration LetDecodesPass(absl::Duration estimated);
  Chosen Choose(bool prefills) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Execute(Work& work);
  // Waits for a launch, ends its steps and answers their calls.
  void End(std::unique_ptr<IssuedLaunch> issued);
  // Hands an issued launch to the ending thread.
  void PassOn(std::unique_ptr<IssuedLaunch> issued);
  // Ends the job in its `done`, which lets the call's flow go on.
  static void Answer(StepJobPtr job);
  // Calls Answer on one of the repliers, the threads that answer calls.
  Task<void> AnswerAside(StepJobPtr job);
  // Counts a launch's segments of prefills as run. Returns the prefills whose last segment has ended with it, or that
  // have failed.
  std::vector<StepJobPtr> EndSegments(const IssuedLaunch& issued) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Backend& backend_;
  DeviceHealth& health_;
  const BatcherOptions options_;
  const bool runs_behind_;  // operators return before the device has computed them
  BatchExecutor executor_;
  std::array<LaunchLane, 3> lanes_;  // two launches are on their way, and decodes that pass the second

  mutable absl::Mutex mu_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GroupKey, uint64_t> groups_ ABSL_GUARDED_BY(mu_);
  uint64_t groups_made_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Work*> works_ ABSL_GUARDED_BY(mu_);   // in order of arrival
  bool engine_taken_ ABSL_GUARDED_BY(mu_) = false;  // a thread issues a launch or runs work
  std::vector<LaunchLane*> free_lanes_ ABSL_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<IssuedLaunch>> issued_ ABSL_GUARDED_BY(mu_);  // not taken yet by the ending thread
  // Number of launches that the ending thread has, or will get.
  int32_t to_be_ended_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<bool> any_issued_{false};  // issued_ is not empty
  // Number of jobs that have ended and that repliers still answer.
  int32_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  int32_t places_ ABSL_GUARDED_BY(mu_) = 0;            // places taken and not used yet
  int32_t on_their_way_ ABSL_GUARDED_BY(mu_) = 0;      // launches whose steps have not all ended
  absl::Duration expected_time_ ABSL_GUARDED_BY(mu_);  // estimated time of all chosen launches that have not run
  SteadyTime expected_end_ ABSL_GUARDED_BY(mu_);       // estimated end of the last chosen launch
  // Longest time to issue a launch, and the part of it that comes after a prefill's inputs; both fall by a tenth with
  // each launch.
  absl::Duration issue_time_ ABSL_GUARDED_BY(mu_), start_time_ ABSL_GUARDED_BY(mu_);
  // The scheduler has no step that may run now, until something changes.
  bool nothing_may_run_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Last: they use all of the above. Only engine_ exists if the device does not work behind the host. Repliers answer
  // calls whose steps have ended, because serializing a large reply takes as long as a step and the ending thread must
  // go on to the next launch.
  std::optional<ThreadExecutor> repliers_;
  std::optional<TaskGroup> answers_;  // tasks of AnswerAside, on the repliers
  std::thread ender_;
  std::thread engine_;
};

}  // namespace gdn
