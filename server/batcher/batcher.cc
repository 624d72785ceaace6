#include "server/batcher/batcher.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/this_thread.h"

namespace gdn {

Batcher::Batcher(Backend& backend, DeviceHealth& health, const BatcherOptions& options)
    : backend_(backend), health_(health), options_(options), executor_(backend, health), engine_([this] {
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

absl::Status Batcher::Submit(StepJobPtr job) {
  GDN_RETURN_IF_ERROR(health_.status());
  absl::MutexLock lock(&mu_);
  if (draining_ || stop_) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                     "the server is shutting down and takes no new steps; send this one to another server");
  }
  if (decodes_.size() + prefills_.size() >= static_cast<size_t>(options_.max_queued_steps)) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kQueueFull,
                     StrCat(options_.max_queued_steps, " steps are waiting already; try again shortly"));
  }
  (job->prefill ? prefills_ : decodes_).push_back(std::move(job));
  return absl::OkStatus();
}

void Batcher::Post(std::function<absl::Status(Backend&)> task, std::function<void(absl::Status)> done) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back({.run = std::move(task), .done = std::move(done)});
}

bool Batcher::IdleLocked() const { return decodes_.empty() && prefills_.empty() && tasks_.empty() && !working_; }

bool Batcher::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return IdleLocked(); };
  return mu_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

bool Batcher::draining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

size_t Batcher::queued_steps() const {
  absl::MutexLock lock(&mu_);
  return decodes_.size() + prefills_.size();
}

std::vector<StepJobPtr> Batcher::TakeDecodeBatchLocked() {
  std::vector<StepJobPtr> batch;
  size_t rows = 0;
  for (auto it = decodes_.begin(); it != decodes_.end();) {
    const bool fits = batch.empty() || (rows + (*it)->rows.size() <= static_cast<size_t>(options_.max_batch_rows) &&
                                        CanRunTogether(*batch.front(), **it));
    if (!fits) {
      ++it;
      continue;
    }
    rows += (*it)->rows.size();
    batch.push_back(std::move(*it));
    it = decodes_.erase(it);
  }
  return batch;
}

void Batcher::EngineLoop() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || !decodes_.empty() || !prefills_.empty() || !tasks_.empty();
  };
  for (;;) {
    std::vector<StepJobPtr> decodes;
    std::deque<Task> tasks;
    {
      absl::MutexLock lock(&mu_);
      working_ = executor_.prefill_in_progress();
      if (!working_) mu_.Await(absl::Condition(&has_work));
      if (stop_ && IdleLocked()) return;
      decodes = TakeDecodeBatchLocked();
      tasks.swap(tasks_);
      if (!executor_.prefill_in_progress() && !prefills_.empty()) {
        executor_.StartPrefill(std::move(prefills_.front()));
        prefills_.pop_front();
      }
      working_ = true;
    }
    if (!decodes.empty()) executor_.Decode(decodes);
    for (Task& task : tasks) {
      absl::Status status = health_.status();
      if (status.ok()) {
        status = task.run(backend_);
        if (absl::Status sync = backend_.Synchronize(); status.ok()) status = std::move(sync);
        status = health_.Report(std::move(status));
      }
      task.run = nullptr;  // the session it holds is let go before anybody hears of the end
      task.done(std::move(status));
    }
    if (executor_.prefill_in_progress()) executor_.PrefillSegment();
  }
}

}  // namespace gdn
