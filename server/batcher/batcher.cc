#include "server/batcher/batcher.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/processors.h"
#include "base/threads/steady_wait.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

// Most groups that are remembered. Group numbers are never reused.
constexpr size_t kMaxGroups = 1024;

constexpr int kMostRepliers = 8;
constexpr absl::Duration kPollForIssue = absl::Microseconds(500);
// Margin before the expected end of the running launch, beside the time to issue: for the thread's wake-up and errors
// of estimates.
constexpr absl::Duration kLastMoment = absl::Microseconds(60);

// Cost of a prefill on a CPU until it is measured. It is high, so that the first segments beside decodes are short.
const LaunchCost kFirstCpuPrefillCost(/*fixed_us=*/100, /*token_us=*/20);

// True if the job's reply is sent in some hundred microseconds at most.
bool IsShortReply(const StepJob& job) { return job.shape.OutputBytes(job.token_count) <= size_t{1} << 20; }

SchedulerOptions MakeSchedulerOptions(const BatcherOptions& options, const BackendInfo& backend) {
  SchedulerOptions made;
  made.max_rows = options.max_batch_rows;
  if (backend.merges_sequences) {
    made.max_segment_tokens = kMaxMergedTokens;
    return made;
  }
  made.max_segment_tokens = kPrefillSegmentTokens;
  made.segment_us = std::numeric_limits<double>::infinity();  // nothing waits
  // Sequences of a launch run one after the other, so merging gains nothing.
  made.least_merged_tokens = kPrefillSegmentTokens;
  made.prefill_cost = kFirstCpuPrefillCost;
  return made;
}

}  // namespace

Batcher::Batcher(Backend& backend, DeviceHealth& health, const BatcherOptions& options)
    : backend_(backend),
      health_(health),
      options_(options),
      runs_behind_(!backend.info().unified_memory),
      executor_(backend, health),
      lanes_{LaunchLane(backend), LaunchLane(backend), LaunchLane(backend)},
      scheduler_(MakeSchedulerOptions(options, backend.info())) {
  {
    absl::MutexLock lock(&mu_);
    for (LaunchLane& lane : lanes_) free_lanes_.push_back(&lane);
  }
  if (runs_behind_) {
    const int repliers = std::clamp(AvailableProcessors() / 4, 1, kMostRepliers);
    repliers_.emplace(ThreadExecutorOptions{.name = "gdn-replier", .threads = repliers});
    answers_.emplace(*repliers_);
    ender_ = std::thread([this] {
      NameThisThread("gdn-ender");
      EndLoop();
    });
  }
  engine_ = std::thread([this] {
    NameThisThread("gdn-engine");
    EngineLoop();
  });
}

Batcher::~Batcher() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  engine_.join();
  if (ender_.joinable()) ender_.join();
}

void Batcher::Schedule(StepJob& job) {
  const StepLease& lease = job.rows.front().lease;
  const std::shared_ptr<StatePool>& pool = lease.pool();
  const GroupKey key{.weights = job.weights,
                     .layout = pool->view().layout,
                     .shape = job.shape,
                     .path = job.prefill ? PrefillPathOf(job.rows.front().tokens) : PrefillPath::kScan,
                     .draft = job.draft,
                     .tree = job.tree};
  if (groups_.size() >= kMaxGroups) groups_.clear();
  const auto [group, is_new] = groups_.try_emplace(key, groups_made_ + 1);
  if (is_new) ++groups_made_;
  job.principal = lease.session().account()->name();
  job.turn = &lease.session().turn();
  job.group = group->second;
  job.row_count = static_cast<int64_t>(job.rows.size());
  job.token_count = 0;
  for (const StepRow& row : job.rows) job.token_count += row.tokens;
  job.pool = nullptr;
  job.submitted = SteadyNow();
  if (job.prefill) job.segment_multiple = PrefillMultiple(backend_.info(), job.shape.kind);
  if (job.prefill && lease.needs_spare()) {
    job.pool = pool.get();
    scheduler_.SetSpares(pool.get(), pool->spare_slots());
  }
  scheduler_.Add(job);
  nothing_may_run_ = false;
}

void Batcher::SetWeight(const std::string& account, double weight) {
  absl::MutexLock lock(&mu_);
  scheduler_.SetWeight(account, weight);
}

absl::Status Batcher::CheckTakesSteps() const {
  if (draining_ || stop_) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                     "the server is shutting down and takes no new steps; send this one to another server");
  }
  if (scheduler_.waiting() + static_cast<size_t>(places_) >= static_cast<size_t>(options_.max_queued_steps)) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kQueueFull,
                     StrCat(options_.max_queued_steps, " steps are waiting already; try again shortly"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Batcher::Place> Batcher::TakePlace() {
  GDN_RETURN_IF_ERROR(health_.status());
  absl::MutexLock lock(&mu_);
  GDN_RETURN_IF_ERROR(CheckTakesSteps());
  ++places_;
  return Place(this);
}

Batcher::Place::~Place() {
  if (batcher_ == nullptr) return;
  absl::MutexLock lock(&batcher_->mu_);
  --batcher_->places_;
}

void Batcher::Place::Submit(StepJobPtr job, Where where) && {
  static_cast<void>(std::exchange(batcher_, nullptr)->Enqueue(std::move(job), where, /*has_place=*/true));
}

absl::Status Batcher::Submit(StepJobPtr job, Where where) {
  GDN_RETURN_IF_ERROR(health_.status());
  return Enqueue(std::move(job), where, /*has_place=*/false);
}

absl::Status Batcher::Enqueue(StepJobPtr job, Where where, bool has_place) {
  Chosen chosen;
  bool ends_here = false;
  {
    absl::MutexLock lock(&mu_);
    if (has_place) {
      --places_;
    } else {
      GDN_RETURN_IF_ERROR(CheckTakesSteps());
    }
    const bool idle =
        where == Where::kHereIfShort && !job->prefill && !engine_taken_ && on_their_way_ == 0 && !HasWork();
    Schedule(*job);
    job->self = job;
    ends_here = idle && scheduler_.IsShort(*job, absl::ToDoubleMicroseconds(options_.short_step));
    // If the device works behind the host, this thread is busy only until the launch is issued.
    if (!ends_here && !(idle && runs_behind_)) return absl::OkStatus();
    chosen = Choose(/*prefills=*/false);
    engine_taken_ = true;
    if (!ends_here) ++to_be_ended_;
  }
  job = nullptr;
  std::unique_ptr<IssuedLaunch> issued = executor_.Issue(std::move(chosen.launch), *chosen.lane);
  {
    absl::MutexLock lock(&mu_);
    engine_taken_ = false;
  }
  if (ends_here) {
    End(std::move(issued));
  } else {
    PassOn(std::move(issued));
  }
  return absl::OkStatus();
}

void Batcher::Enqueue(Work& work) {
  absl::MutexLock lock(&mu_);
  works_.push_back(&work);
}

void Batcher::RefuseSteps() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
}

bool Batcher::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !HasWork() && !engine_taken_ && on_their_way_ == 0 && unanswered_ == 0 && places_ == 0;
  };
  return AwaitSteadily(mu_, absl::Condition(&idle), timeout);
}

bool Batcher::draining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

size_t Batcher::queued_steps() const {
  absl::MutexLock lock(&mu_);
  return scheduler_.waiting();
}

void Batcher::Execute(Work& work) {
  absl::Status status = health_.status();
  if (status.ok()) {
    status = backend_.UseThread();
    if (status.ok()) status = work.run_(backend_);
    if (absl::Status sync = backend_.Synchronize(); status.ok()) status = std::move(sync);
    status = health_.Report(std::move(status));
  }
  work.status_ = std::move(status);
  Flow& flow = *work.flow_;
  flow.executor().Post(flow);
}

Batcher::Chosen Batcher::Choose(bool prefills) {
  Chosen chosen{.launch = scheduler_.Next(prefills)};
  if (chosen.launch.empty()) {
    nothing_may_run_ = true;
    return chosen;
  }
  if (chosen.launch.prefill) {
    for (const Launch::Part& part : chosen.launch.parts) ++static_cast<StepJob&>(*part.step).on_their_way;
  }
  ++on_their_way_;
  const absl::Duration estimated = absl::Microseconds(chosen.launch.estimated_us);
  expected_end_ = std::max(expected_end_, SteadyNow()) + estimated;
  expected_time_ += estimated;
  chosen.lane = free_lanes_.back();
  free_lanes_.pop_back();
  return chosen;
}

std::vector<StepJobPtr> Batcher::EndSegments(const IssuedLaunch& issued) {
  std::vector<StepJobPtr> ended;
  for (size_t i = 0; i < issued.jobs.size(); ++i) {
    StepJob& job = *issued.jobs[i];
    --job.on_their_way;
    job.compute_time_us += issued.compute_time_us;
    job.failure.Update(issued.StatusOf(i));
    const bool over = issued.launch.parts[i].last || !job.failure.ok();
    if (!job.failure.ok()) scheduler_.Remove(job);  // the job may have segments left
    if (over && job.on_their_way == 0) ended.push_back(issued.jobs[i]);
  }
  return ended;
}

void Batcher::End(std::unique_ptr<IssuedLaunch> issued) {
  executor_.Wait(*issued);
  const bool prefill = issued->launch.prefill;
  if (!prefill) executor_.EndDecodes(*issued);
  std::vector<StepJobPtr> ended;
  {
    absl::MutexLock lock(&mu_);
    scheduler_.Observe(issued->launch, static_cast<double>(issued->compute_time_us));
    // Correct the estimate with the actual end: the remaining launches began then.
    expected_time_ -= absl::Microseconds(issued->launch.estimated_us);
    expected_end_ = issued->end + expected_time_;
    ended = prefill ? EndSegments(*issued) : std::move(issued->jobs);
    free_lanes_.push_back(issued->lane);
  }
  if (prefill && !ended.empty()) {
    for (const StepJobPtr& job : ended) executor_.EndPrefill(*job, job->failure);
    absl::MutexLock lock(&mu_);
    for (const StepJobPtr& job : ended) scheduler_.ReleaseSpare(*job);
    nothing_may_run_ = false;
  }
  issued = nullptr;
  bool answer_here = !runs_behind_;
  if (runs_behind_) {
    absl::MutexLock lock(&mu_);
    // If no other launch is on its way, answer here, because handing over only takes time. A long reply is handed over
    // all the same, because decodes that come while it is sent need this thread.
    answer_here = on_their_way_ == 1 && ended.size() == 1 && IsShortReply(*ended.front());
    if (!answer_here) unanswered_ += static_cast<int32_t>(ended.size());
  }
  for (StepJobPtr& job : ended) {
    if (answer_here) {
      Answer(std::move(job));
      continue;
    }
    answers_->Spawn(AnswerAside(std::move(job)));
  }
  absl::MutexLock lock(&mu_);
  --on_their_way_;
}

void Batcher::Answer(StepJobPtr job) {
  // Release the job first: it must not be touched once the waiting flow may continue.
  job->self = nullptr;
  Arrivals* const done = job->done;
  job = nullptr;
  if (done != nullptr) done->End();
}

Task<void> Batcher::AnswerAside(StepJobPtr job) {
  Answer(std::move(job));
  absl::MutexLock lock(&mu_);
  --unanswered_;
  co_return;
}

void Batcher::PassOn(std::unique_ptr<IssuedLaunch> issued) {
  absl::MutexLock lock(&mu_);
  issued_.push_back(std::move(issued));
  any_issued_.store(true, std::memory_order_release);
}

void Batcher::AwaitLastMoment(size_t not_issued, absl::Duration estimated, absl::Duration issue_time) {
  const auto idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return free_lanes_.size() + not_issued == lanes_.size() || !works_.empty();
  };
  mu_.AwaitWithTimeout(absl::Condition(&idle), expected_end_ - estimated - SteadyNow() - issue_time - kLastMoment);
}

absl::Duration Batcher::LetDecodesPass(absl::Duration estimated) {
  const SteadyTime begin = SteadyNow();
  Chosen chosen;
  {
    absl::MutexLock lock(&mu_);
    AwaitLastMoment(/*not_issued=*/1, estimated, start_time_);
    if (!free_lanes_.empty() && scheduler_.DecodesLead()) {
      chosen = Choose(/*prefills=*/false);
      ++to_be_ended_;
    }
  }
  if (chosen.lane != nullptr) PassOn(executor_.Issue(std::move(chosen.launch), *chosen.lane));
  return SteadyNow() - begin;
}

void Batcher::EngineLoop() {
  const auto may_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !engine_taken_ && (!works_.empty() || MayIssue() || (stop_ && !HasWork()));
  };
  for (bool is_ours = false;;) {
    std::vector<Work*> works;
    Chosen chosen;
    {
      absl::MutexLock lock(&mu_);
      if (std::exchange(is_ours, false)) engine_taken_ = false;
      mu_.Await(absl::Condition(&may_work));
      if (works_.empty() && !MayIssue()) return;  // stopped
      if (runs_behind_ && works_.empty()) AwaitLastMoment(/*not_issued=*/0, absl::ZeroDuration(), issue_time_);
      if (engine_taken_) continue;
      engine_taken_ = is_ours = true;
      works.swap(works_);
      if (works.empty() && MayIssue()) chosen = Choose(/*prefills=*/true);
      if (runs_behind_ && !chosen.launch.empty()) ++to_be_ended_;
    }
    if (!works.empty()) {
      for (Work* const work : works) Execute(*work);
      absl::MutexLock lock(&mu_);  // work comes before launches, but a launch follows each round of work
      if (MayIssue()) chosen = Choose(/*prefills=*/true);
      if (runs_behind_ && !chosen.launch.empty()) ++to_be_ended_;
    }
    if (chosen.launch.empty()) continue;
    const absl::Duration estimated = absl::Microseconds(chosen.launch.estimated_us);
    absl::Duration passing;
    SteadyTime started;
    std::unique_ptr<IssuedLaunch> issued = executor_.Issue(std::move(chosen.launch), *chosen.lane, [&] {
      passing = LetDecodesPass(estimated);
      started = SteadyNow();
    });
    if (!runs_behind_) {
      End(std::move(issued));
      continue;
    }
    const SteadyTime end = SteadyNow();
    const SteadyTime begin = issued->begin;
    PassOn(std::move(issued));
    absl::MutexLock lock(&mu_);
    issue_time_ = std::max(end - begin - passing, 0.9 * issue_time_);
    if (started != SteadyTime()) start_time_ = std::max(end - started, 0.9 * start_time_);
  }
}

void Batcher::EndLoop() {
  const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return to_be_ended_ > 0 || (stop_ && !HasWork() && on_their_way_ == 0);
  };
  const auto issued_one = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !issued_.empty(); };
  for (;;) {
    std::unique_ptr<IssuedLaunch> issued;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&any));
      if (to_be_ended_ == 0) return;
    }
    // Poll while the launch is being issued, because waking up takes about as long.
    for (const SteadyTime end = SteadyNow() + kPollForIssue;
         !any_issued_.load(std::memory_order_acquire) && SteadyNow() < end;) {
    }
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&issued_one));
      issued = std::move(issued_.front());
      issued_.pop_front();
      any_issued_.store(!issued_.empty(), std::memory_order_release);
      --to_be_ended_;
    }
    End(std::move(issued));
  }
}

}  // namespace gdn
