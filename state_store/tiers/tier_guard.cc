#include "state_store/tiers/tier_guard.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/string_cat.h"
#include "base/threads/steady_clock.h"
#include "base/threads/this_thread.h"
#include "state_store/tiers/disk/stored_file.h"

namespace gdn {
namespace {

// Calls that run at a time: as many as the server's threads that evict, load and copy states.
constexpr int kThreads = 8;
constexpr int kUnhurriedThreads = 2;  // as many as the threads that write checkpoints
constexpr int kUnhurriedNiceness = 10;
constexpr int kLooksPerStall = 8;
// If a call fails after this fraction of `stall_after`, it ran into a time limit, such as a connection's.
constexpr int kShortPart = 4;

}  // namespace

TierGuard::TierGuard(StateTier& tier, const TierGuardOptions& options)
    : tier_(tier),
      options_(options),
      threads_({.name = StrCat("gdn-", tier.name()), .threads = kThreads}),
      unhurried_(
          {.name = StrCat("gdn-", tier.name(), "-low"), .threads = kUnhurriedThreads, .niceness = kUnhurriedNiceness}) {
}

TierGuard::~TierGuard() { stop_.Give(); }

template <typename Result, typename Ask>
Result TierGuard::Guarded(Ask ask) {
  const auto result = std::make_shared<std::optional<Result>>();  // the call owns it and may end later
  const auto ran = TryRun([result, ask = std::move(ask)] { return StatusOf(result->emplace(ask())); });
  return ran.has_value() ? *std::move(*result) : Result(NoAnswer());
}

absl::StatusOr<StoreResult> TierGuard::Store(const StateKey& key, const SessionImagePtr& image) {
  return Guarded<absl::StatusOr<StoreResult>>([this, key, image] { return tier_.Store(key, image); });
}

absl::StatusOr<SessionImagePtr> TierGuard::Load(const StateKey& key) {
  return Guarded<absl::StatusOr<SessionImagePtr>>([this, key] { return tier_.Load(key); });
}

absl::Status TierGuard::Erase(const StateKey& key, bool all) {
  return Run([this, key, all] { return tier_.Erase(key, all); });
}

absl::StatusOr<StoredSession> TierGuard::Describe(const StateKey& key) {
  return Guarded<absl::StatusOr<StoredSession>>([this, key] { return tier_.Describe(key); });
}

absl::Status TierGuard::SetErasureNote(const StateKey& session, const std::set<std::string>& tiers) {
  return Run([this, session, tiers] { return tier_.SetErasureNote(session, tiers); });
}

absl::Status TierGuard::Run(std::function<absl::Status()> work) { return TryRun(std::move(work)).value_or(NoAnswer()); }

std::optional<absl::Status> TierGuard::TryRun(std::function<absl::Status()> work) {
  if (!Answers().ok()) return std::nullopt;
  const auto call = std::make_shared<Call>();
  const auto status = std::make_shared<absl::Status>();
  TaskQueue& threads = GivesWay::here() ? unhurried_ : threads_;
  threads.Post([this, call, status, work = std::move(work)] { Work(*call, [&] { return *status = work(); }); });
  std::unique_lock lock(mu_);
  if (Await(*call, lock)) return *status;
  call->given_up = true;
  if (call->thread != 0) NoteHanging();
  return std::nullopt;
}

bool TierGuard::Await(Call& call, std::unique_lock<std::mutex>& lock) const {
  const auto look = absl::ToChronoNanoseconds(options_.stall_after / kLooksPerStall);
  std::optional<int64_t> seen;
  SteadyTime since = SteadyNow();
  while (!call.ended.wait_for(lock, look, [&] { return call.done; })) {
    const std::optional<int64_t> switches = SwitchesOf(call.thread);
    if (!switches.has_value() || switches != seen) {
      seen = switches;
      since = SteadyNow();
    } else if (SteadyNow() - since >= options_.stall_after) {
      return false;
    }
  }
  return true;
}

void TierGuard::Work(Call& call, const std::function<absl::Status()>& work) {
  {
    const std::lock_guard lock(mu_);
    if (call.given_up) return;  // the threads hung before the call began
    call.thread = ThisThreadNumber();
  }
  const SteadyTime begun = SteadyNow();
  absl::Status status = work();
  {
    const std::lock_guard lock(mu_);
    call.done = true;
    call.ended.notify_one();
    if (call.given_up) {
      if (hanging_ > 1) {  // the last call that hangs probes the tier
        --hanging_;
        return;
      }
    } else {
      const bool timed_out = absl::IsUnavailable(status) && SteadyNow() - begun >= options_.stall_after / kShortPart;
      if (!timed_out || hanging_ > 0) return;
      NoteHanging();
    }
  }
  while (absl::IsUnavailable(status) && !stop_.GivenWithin(options_.probe_every)) status = tier_.Probe();
  const std::lock_guard lock(mu_);
  if (--hanging_ == 0) spdlog::info("the {} tier answers again, no longer degraded", name());
}

void TierGuard::NoteHanging() {
  if (++hanging_ == 1) {
    spdlog::error("degraded: the {} tier hangs. What is in it is UNAVAILABLE until it answers", name());
  }
}

absl::Status TierGuard::NoAnswer() const {
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                   StrCat("the ", name(),
                          " tier hangs: a call of it has had no answer, so it is asked nothing until it answers. What "
                          "is in it is as it was; try again later"),
                   {{"tier", std::string(name())}});
}

absl::Status TierGuard::Answers() const {
  const std::lock_guard lock(mu_);
  return hanging_ == 0 ? absl::OkStatus() : NoAnswer();
}

TierUsage TierGuard::usage() const {
  TierUsage usage = tier_.usage();
  if (const absl::Status answers = Answers(); !answers.ok()) usage.problem = std::string(answers.message());
  return usage;
}

}  // namespace gdn
