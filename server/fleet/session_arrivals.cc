#include "server/fleet/session_arrivals.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/this_thread.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

constexpr int kThreads = 4;  // each waits for an answer of Redis at a time
constexpr absl::Duration kTick = absl::Milliseconds(5);
// How long after one look at a session that another server has until the next.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(200);
// A request that was lost, with the Redis that had it, is made again.
constexpr absl::Duration kAskAgain = absl::Seconds(1);

absl::Status Draining(const StateKey& key) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                   StrCat("the server is draining and takes no session in; send the call for sessions/", key.id,
                          " again: another server of the fleet has it or will"),
                   {{"session", StrCat("sessions/", key.id)}});
}

}  // namespace

SessionArrivals::SessionArrivals(SessionArrivalsParts parts, absl::Duration longest_wait)
    : parts_(std::move(parts)),
      longest_wait_(longest_wait),
      threads_({.name = "gdn-arrivals", .threads = kThreads}),
      timer_([this] {
        NameThisThread("gdn-arrivals-t");
        Loop();
      }) {}

SessionArrivals::~SessionArrivals() {
  Close();
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  timer_.join();
  threads_.Drain();
  while (true) {
    StateKey key;
    {
      absl::MutexLock lock(&mu_);
      if (arrivals_.empty()) return;
      key = arrivals_.begin()->first;
    }
    Finish(key, MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining, "the server ends"), /*made=*/true);
  }
}

void SessionArrivals::Bring(const StateKey& key, BringRequest request, Done done) {
  if (parts_.sessions.Knows(key.principal, key.id)) return done(absl::OkStatus());
  if (const absl::Status ours = parts_.environment.CheckOurs(); !ours.ok()) return done(ours);
  if (closed_) return done(Draining(key));
  const Turn turn = request.account == nullptr ? Turn() : request.account->turn();
  {
    absl::MutexLock lock(&mu_);
    const auto [it, first] = arrivals_.try_emplace(key);
    it->second.waiters.push_back({.request = std::move(request), .done = std::move(done)});
    if (!first) return;
    it->second.begun = SteadyNow();
  }
  Post(key, turn);
}

void SessionArrivals::GiveBack(const StateKey& key) {
  {
    absl::MutexLock lock(&mu_);
    const auto [it, first] = arrivals_.try_emplace(key);
    if (!first) return;  // it is wanted here
    it->second.give_back = true;
    it->second.begun = SteadyNow();
  }
  Post(key, Turn());
}

void SessionArrivals::Post(const StateKey& key, const Turn& turn) {
  threads_.Post([this, key] { Try(key); }, turn);
}

int64_t SessionArrivals::waiting() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(arrivals_.size());
}

void SessionArrivals::Loop() {
  const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stop_ || !arrivals_.empty(); };
  while (true) {
    std::vector<std::pair<StateKey, Turn>> due;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&wanted));
      if (mu_.AwaitWithTimeout(absl::Condition(&stop_), kTick)) return;
      const SteadyTime now = SteadyNow();
      for (auto& [key, arrival] : arrivals_) {
        if (arrival.again > now) continue;
        arrival.again = SteadyTime::InfiniteFuture();
        const ByteAccountPtr account = arrival.waiters.empty() ? nullptr : arrival.waiters.front().request.account;
        due.emplace_back(key, account == nullptr ? Turn() : account->turn());
      }
    }
    for (const auto& [key, turn] : due) Post(key, turn);
  }
}

bool SessionArrivals::DropLate(const StateKey& key) {
  std::vector<std::pair<Done, absl::Status>> late;
  bool waited_for = true;
  {
    absl::MutexLock lock(&mu_);
    const auto it = arrivals_.find(key);
    std::vector<Waiter>& waiters = it->second.waiters;
    for (Waiter& waiter : waiters) {
      absl::Status status = waiter.request.limit.Check();
      if (!status.ok()) late.emplace_back(std::exchange(waiter.done, nullptr), std::move(status));
    }
    std::erase_if(waiters, [](const Waiter& waiter) { return waiter.done == nullptr; });
    waited_for = !waiters.empty();
    if (!waited_for) arrivals_.erase(it);
  }
  for (const auto& [done, status] : late) done(status);
  return waited_for;
}

void SessionArrivals::Finish(const StateKey& key, const absl::Status& status, bool made) {
  std::vector<Waiter> waiters;
  {
    absl::MutexLock lock(&mu_);
    const auto it = arrivals_.find(key);
    if (it == arrivals_.end()) return;
    const auto makes = [](const Waiter& waiter) { return waiter.request.make; };
    // Somebody who wants to make it has come meanwhile: there is none, and its name is not taken yet.
    if (absl::IsNotFound(status) && !made && std::ranges::any_of(it->second.waiters, makes)) {
      it->second.again = SteadyNow();
      return;
    }
    waiters = std::move(it->second.waiters);
    arrivals_.erase(it);
  }
  for (const Waiter& waiter : waiters) waiter.done(status);
}

void SessionArrivals::Try(const StateKey& key) {
  bool give_back = false;
  bool make = false;
  {
    absl::MutexLock lock(&mu_);
    give_back = std::exchange(arrivals_.at(key).give_back, false);
  }
  if (give_back) {
    const auto is_here = [&] { return parts_.sessions.Knows(key.principal, key.id); };
    parts_.share.GiveBack(key, is_here).IgnoreError();  // it goes with the lease at the latest
  }
  if (!DropLate(key)) return;
  {
    absl::MutexLock lock(&mu_);
    make = std::ranges::any_of(arrivals_.at(key).waiters, [](const Waiter& waiter) { return waiter.request.make; });
  }
  std::optional<absl::Status> outcome = TryOnce(key, make);
  if (!outcome.has_value()) {
    absl::MutexLock lock(&mu_);
    Arrival& arrival = arrivals_.at(key);
    const SteadyTime now = SteadyNow();
    if (now - arrival.begun < longest_wait_ && !closed_) {
      arrival.pause = std::clamp(arrival.pause * 2, kFirstPause, kLongestPause);
      arrival.again = now + arrival.pause;
      return;
    }
    outcome = SessionElsewhere(key.id, arrival.holder_name);
  }
  Finish(key, *outcome, make);
}

std::optional<absl::Status> SessionArrivals::TryOnce(const StateKey& key, bool make) {
  // Made here, or come, since the call looked.
  if (parts_.sessions.Knows(key.principal, key.id)) return absl::OkStatus();
  if (closed_) return Draining(key);
  const absl::StatusOr<TakenSession> taken = parts_.share.Take(key, make);
  if (!taken.ok()) return taken.status();
  switch (taken->outcome) {
    case TakenSession::kNone:
      return SessionNotFound(key.id);
    case TakenSession::kMade:
      parts_.tiers.Forget(key);  // of one of its name that this server had before
      return absl::OkStatus();
    case TakenSession::kHeld:
      break;
    case TakenSession::kTaken:
      parts_.tiers.Forget(key);
      return Adopt(key, *taken, make);
  }
  {
    absl::MutexLock lock(&mu_);
    Arrival& arrival = arrivals_.at(key);
    arrival.holder_name = taken->holder_name;
    const SteadyTime now = SteadyNow();
    if (arrival.ask_again > now) return std::nullopt;
    arrival.ask_again = now + kAskAgain;
  }
  const absl::Status asked = parts_.share.Ask(taken->holder, key);
  return asked.ok() ? std::nullopt : std::optional(asked);
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
  // Only named checkpoints are left of one that was never made durable itself.
  if (absl::IsNotFound(adopted) && make) return absl::OkStatus();
  // As it was before; where Redis is gone it stays this server's, and is taken again at the next call.
  parts_.share.GiveUp(key, taken.orderly).IgnoreError();
  return absl::IsNotFound(adopted) ? SessionNotFound(key.id) : adopted;
}

void SessionArrivals::AdoptCheckpoints(const StateKey& key) {
  const absl::StatusOr<std::vector<StateKey>> named = parts_.redis.ListCheckpoints(key);
  if (!named.ok()) {
    spdlog::warn("the named checkpoints of session id={} are found by their names alone: {}", key.id,
                 std::string(named.status().message()));
    return;
  }
  for (const StateKey& checkpoint : *named) {
    const absl::StatusOr<StoredSession> stored = parts_.redis.Describe(checkpoint);
    if (stored.ok()) parts_.tiers.Adopt(checkpoint, parts_.redis, stored->bytes, stored->header.version());
  }
}

}  // namespace gdn
