#include "server/fleet/session_arrivals.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/signal.h"
#include "base/task/sleep.h"
#include "base/task/status_macros.h"
#include "base/task/task_queue_executor.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

constexpr int kThreads = 4;  // each waits for one answer of Redis at a time
// Pause between two checks of a session that another server has; it doubles each time.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(200);
// The request to another server is repeated at this interval, because Redis may have lost it.
constexpr absl::Duration kAskAgain = absl::Seconds(1);

absl::Status Draining(const StateKey& key) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                   StrCat("this server is draining and accepts no sessions; send the call for sessions/", key.id,
                          " again: another server of the fleet has the session or will take it over"),
                   {{"session", StrCat("sessions/", key.id)}});
}

absl::Status ServerEnds() {
  return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining, "the server ends");
}

}  // namespace

struct SessionArrivals::Arrival {
  std::vector<const BringRequest*> calls;  // calls that wait; guarded by SessionArrivals::mu_
  absl::Status result;                     // set before `over` is raised
  Signal over;
};

SessionArrivals::SessionArrivals(const FleetParts& parts, absl::Duration longest_wait)
    : parts_(parts),
      longest_wait_(longest_wait),
      threads_({.name = "gdn-arrivals", .threads = kThreads}),
      group_(parts_.executor) {}

SessionArrivals::~SessionArrivals() {
  Close();
  end_.Cancel();
  calls_.WaitForNone();
}

int64_t SessionArrivals::waiting() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(arrivals_.size());
}

// ---- The calls

Task<absl::Status> SessionArrivals::Bring(StateKey key, BringRequest request) {
  if (parts_.sessions.Knows(key.principal, key.id)) co_return absl::OkStatus();
  GDN_CO_RETURN_IF_ERROR(parts_.environment.CheckOurs());
  if (closed_) co_return Draining(key);
  // Do not begin for a call that has ended.
  GDN_CO_RETURN_IF_ERROR(request.deadline.Check(parts_.executor.Now()));
  const OpenCount::Hold open = calls_.Begin();
  const std::shared_ptr<Arrival> arrival = Join(key, &request);
  absl::Status waited = co_await arrival->over.Wait(request.deadline);
  if (waited.ok()) co_return arrival->result;
  absl::MutexLock lock(&mu_);
  std::erase(arrival->calls, &request);
  co_return waited;
}

std::shared_ptr<SessionArrivals::Arrival> SessionArrivals::Join(const StateKey& key, const BringRequest* call) {
  std::shared_ptr<Arrival> arrival;
  {
    absl::MutexLock lock(&mu_);
    const auto [it, first] = arrivals_.try_emplace(key);
    if (first) it->second = std::make_shared<Arrival>();
    arrival = it->second;
    if (call != nullptr) arrival->calls.push_back(call);
    if (!first) return arrival;
  }
  group_.Spawn(Arrive(key, arrival, /*give_back=*/call == nullptr));
  return arrival;
}

Turn SessionArrivals::TurnOf(const Arrival& arrival) const {
  absl::MutexLock lock(&mu_);
  const ByteAccountPtr account = arrival.calls.empty() ? nullptr : arrival.calls.front()->account;
  return account == nullptr ? Turn() : account->turn();
}

bool SessionArrivals::Makes(const Arrival& arrival) const {
  absl::MutexLock lock(&mu_);
  return std::ranges::any_of(arrival.calls, &BringRequest::make);
}

bool SessionArrivals::IsWanted(const StateKey& key, const Arrival& arrival) {
  absl::MutexLock lock(&mu_);
  if (!arrival.calls.empty()) return true;
  arrivals_.erase(key);
  return false;
}

bool SessionArrivals::Finish(const StateKey& key, Arrival& arrival, absl::Status status, bool made) {
  {
    absl::MutexLock lock(&mu_);
    // A call that would create the session has joined meanwhile, and the last try has not reserved the name.
    if (absl::IsNotFound(status) && !made && std::ranges::any_of(arrival.calls, &BringRequest::make)) return false;
    arrivals_.erase(key);
    arrival.result = std::move(status);
  }
  arrival.over.Raise();
  return true;
}

// ---- The attempt

Task<void> SessionArrivals::Arrive(StateKey key, std::shared_ptr<Arrival> arrival, bool give_back) {
  Executor& here = parts_.executor;
  const SteadyTime latest = here.Now() + longest_wait_;
  if (give_back) {
    TaskQueueExecutor io(threads_, Turn(), here);
    co_await ResumeOn(io);
    const auto is_here = [&] { return parts_.sessions.Knows(key.principal, key.id); };
    parts_.share().GiveBack(key, is_here).IgnoreError();  // after an error the right ends with the lease
    co_await ReturnTo(here);
  }
  SteadyTime ask_again;
  absl::Duration pause = absl::ZeroDuration();
  for (bool over = false; !over;) {
    TaskQueueExecutor io(threads_, TurnOf(*arrival), here);
    co_await ResumeOn(io);
    if (!IsWanted(key, *arrival)) {
      co_await ReturnTo(here);
      co_return;
    }
    const bool make = Makes(*arrival);
    const absl::StatusOr<std::optional<TakenSession>> held = Take(key, make);
    absl::Status outcome = held.status();
    const bool elsewhere = held.ok() && held->has_value();
    if (elsewhere && here.Now() >= ask_again) {
      ask_again = here.Now() + kAskAgain;
      outcome = parts_.share().Ask((*held)->holder, key);
    }
    co_await ReturnTo(here);
    if (outcome.ok() && elsewhere) {  // repeat until its server has given it up
      if (here.Now() < latest && !closed_) {
        pause = std::clamp(pause * 2, kFirstPause, kLongestPause);
        const absl::Status paused = co_await SleepUntil(here.Now() + pause, end_.Never());
        if (paused.ok()) continue;
        outcome = ServerEnds();
      } else {
        outcome = SessionElsewhere(key.id, (*held)->holder_name);
      }
    }
    over = Finish(key, *arrival, std::move(outcome), make);
  }
}

absl::StatusOr<std::optional<TakenSession>> SessionArrivals::Take(const StateKey& key, bool make) {
  // The session was created here or has come since the call looked.
  if (parts_.sessions.Knows(key.principal, key.id)) return std::nullopt;
  if (closed_) return Draining(key);
  GDN_ASSIGN_OR_RETURN(TakenSession taken, parts_.share().Take(key, make));
  if (taken.outcome == TakenSession::kNone) return SessionNotFound(key.id);
  if (taken.outcome == TakenSession::kHeld) return taken;
  parts_.tiers.Forget(key);  // a former session with this name
  if (taken.outcome == TakenSession::kTaken) GDN_RETURN_IF_ERROR(Adopt(key, taken, make));
  return std::nullopt;
}

absl::Status SessionArrivals::Adopt(const StateKey& key, const TakenSession& taken, bool make) {
  const auto adopt = [&]() -> absl::Status {
    GDN_ASSIGN_OR_RETURN(const StoredSession stored, parts_.redis.Describe(key));
    std::optional<int64_t> epoch;
    if (!taken.orderly) {
      GDN_ASSIGN_OR_RETURN(epoch, EpochOfTerm(taken.term));
    }
    return AdoptSession(stored, parts_.sessions, parts_.spec_of, epoch, [&] {
      AdoptCheckpoints(key);
      parts_.tiers.Adopt(key, parts_.redis, stored.bytes, stored.header.version());
    });
  };
  const absl::Status adopted = adopt();
  if (adopted.ok()) {
    ++taken_over_;
    if (!taken.orderly) ++replayed_;
    spdlog::info("session taken over id={} {}", key.id, taken.orderly ? "as it was" : "at its last checkpoint");
    return adopted;
  }
  // The session itself was never durable; the store has only named checkpoints of it. It can be created.
  if (absl::IsNotFound(adopted) && make) return absl::OkStatus();
  // Give the session up as it was. If Redis does not answer, it stays this server's, and the next call takes it again.
  parts_.share().GiveUp(key, taken.orderly).IgnoreError();
  return absl::IsNotFound(adopted) ? SessionNotFound(key.id) : adopted;
}

void SessionArrivals::AdoptCheckpoints(const StateKey& key) {
  const absl::StatusOr<std::vector<StateKey>> named = parts_.redis.ListCheckpoints(key);
  if (!named.ok()) {
    spdlog::warn(
        "cannot list the named checkpoints of session id={} in Redis: ListCheckpoints will not show them, "
        "RestoreCheckpoint with an id finds them: {}",
        key.id, std::string(named.status().message()));
    return;
  }
  for (const StateKey& checkpoint : *named) {
    const absl::StatusOr<StoredSession> stored = parts_.redis.Describe(checkpoint);
    if (stored.ok()) parts_.tiers.Adopt(checkpoint, parts_.redis, stored->bytes, stored->header.version());
  }
}

}  // namespace gdn
