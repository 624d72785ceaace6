#include "server/batcher/batcher.h"

#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/this_thread.h"

namespace gdn {
namespace {

// Groups that are remembered; their numbers are never used again.
constexpr size_t kMaxGroups = 1024;

SchedulerOptions MakeSchedulerOptions(const BatcherOptions& options) {
  SchedulerOptions made;
  made.max_rows = options.max_batch_rows;
  made.segment_multiple = kPrefillSegmentTokens;
  made.segment_us = 0;                               // segments of one multiple
  made.least_merged_tokens = kPrefillSegmentTokens;  // parts of a launch run one after the other, so one is enough
  return made;
}

}  // namespace

Batcher::Batcher(Backend& backend, DeviceHealth& health, const BatcherOptions& options)
    : backend_(backend),
      health_(health),
      options_(options),
      executor_(backend, health),
      scheduler_(MakeSchedulerOptions(options)),
      engine_([this] {
        NameThisThread("gdn-engine");
        EngineLoop();
      }) {}

Batcher::~Batcher() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  engine_.join();
}

void Batcher::Schedule(StepJob& job) {
  const StepLease& lease = job.rows.front().lease;
  const std::shared_ptr<StatePool>& pool = lease.pool();
  const GroupKey key{.weights = job.weights,
                     .layout = pool->view().layout,
                     .kind = job.kind,
                     .scale = job.scale,
                     .use_qk_l2norm = job.use_qk_l2norm,
                     .draft = job.draft};
  if (groups_.size() >= kMaxGroups) groups_.clear();
  const auto [group, is_new] = groups_.try_emplace(key, groups_made_ + 1);
  if (is_new) ++groups_made_;
  job.principal = lease.session().principal();
  job.turn = &lease.session().turn();
  job.group = group->second;
  job.row_count = static_cast<int64_t>(job.rows.size());
  job.token_count = 0;
  for (const StepRow& row : job.rows) job.token_count += row.tokens;
  job.pool = nullptr;
  if (job.prefill && lease.needs_spare()) {
    job.pool = pool.get();
    scheduler_.SetSpares(pool.get(), StatePool::kSpareSlots);
  }
  scheduler_.Add(job);
}

absl::Status Batcher::Submit(StepJobPtr job, Where where) {
  GDN_RETURN_IF_ERROR(health_.status());
  Launch launch;
  {
    absl::MutexLock lock(&mu_);
    if (draining_ || stop_) {
      return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                       "the server is shutting down and takes no new steps; send this one to another server");
    }
    if (scheduler_.waiting() >= static_cast<size_t>(options_.max_queued_steps)) {
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kQueueFull,
                       StrCat(options_.max_queued_steps, " steps are waiting already; try again shortly"));
    }
    // A GPU is made a thread's own before its first call; the engine's is the one that has done so.
    const bool may_run_here =
        where == Where::kHereIfShort && backend_.info().unified_memory && !job->prefill && !engine_taken_ && !HasWork();
    Schedule(*job);
    job->self = job;
    if (!may_run_here || !scheduler_.IsShort(*job, absl::ToDoubleMicroseconds(options_.short_step))) {
      return absl::OkStatus();
    }
    launch = scheduler_.Next(/*prefills=*/false);
    engine_taken_ = true;
  }
  job = nullptr;
  RunLaunch(launch);
  absl::MutexLock lock(&mu_);
  engine_taken_ = false;
  return absl::OkStatus();
}

void Batcher::Post(std::function<absl::Status(Backend&)> task, std::function<void(absl::Status)> done) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back({.run = std::move(task), .done = std::move(done)});
}

bool Batcher::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !HasWork() && !engine_taken_; };
  return mu_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

bool Batcher::draining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

size_t Batcher::queued_steps() const {
  absl::MutexLock lock(&mu_);
  return scheduler_.waiting();
}

void Batcher::RunTask(Task& task) {
  absl::Status status = health_.status();
  if (status.ok()) {
    status = task.run(backend_);
    if (absl::Status sync = backend_.Synchronize(); status.ok()) status = std::move(sync);
    status = health_.Report(std::move(status));
  }
  task.run = nullptr;  // the session it holds is let go before anybody hears of the end
  task.done(std::move(status));
}

void Batcher::RunLaunch(const Launch& launch) {
  std::vector<StepJob*> ended;
  const absl::Time begin = absl::Now();
  executor_.Run(launch, ended);
  const double us = absl::ToDoubleMicroseconds(absl::Now() - begin);
  {
    absl::MutexLock lock(&mu_);
    scheduler_.Observe(launch, us);
    for (StepJob* job : ended) {
      scheduler_.Remove(*job);  // a prefill that failed has segments left
      scheduler_.ReleaseSpare(*job);
    }
  }
  for (StepJob* job : ended) {
    // The callback may own the job's owner: both are moved out so that no cycle keeps them alive.
    const StepJobPtr self = std::move(job->self);
    std::exchange(self->done, nullptr)();
  }
}

void Batcher::EngineLoop() {
  const auto may_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !engine_taken_ && (stop_ || HasWork()); };
  for (bool is_ours = false;; is_ours = true) {
    std::deque<Task> tasks;
    Launch launch;
    {
      absl::MutexLock lock(&mu_);
      if (is_ours) engine_taken_ = false;
      mu_.Await(absl::Condition(&may_work));
      if (stop_ && !HasWork()) return;
      engine_taken_ = true;
      tasks.swap(tasks_);
      if (tasks.empty()) launch = scheduler_.Next(/*prefills=*/true);
    }
    for (Task& task : tasks) RunTask(task);
    if (launch.empty()) {  // tasks come first, but not twice in a row
      absl::MutexLock lock(&mu_);
      launch = scheduler_.Next(/*prefills=*/true);
    }
    if (!launch.empty()) RunLaunch(launch);
  }
}

}  // namespace gdn
