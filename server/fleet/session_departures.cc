#include "server/fleet/session_departures.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/threads/steady_wait.h"
#include "server/session/session_errors.h"

namespace gdn {

struct SessionDepartures::Work {
  Work(size_t sessions, Progress told) : all(static_cast<int64_t>(sessions)), progress(std::move(told)) {}

  const int64_t all;
  const Progress progress;
  absl::Mutex mu;
  int64_t gone ABSL_GUARDED_BY(mu) = 0;
  int64_t failed ABSL_GUARDED_BY(mu) = 0;
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return gone + failed == all; }
};

Task<absl::Status> SessionDepartures::Leave(std::shared_ptr<Session> session) {
  return parts_.sessions.Leave(std::move(session), [this](SessionLease& lease) { return Store(lease); });
}

absl::Status SessionDepartures::Store(SessionLease& lease) {
  const std::shared_ptr<Session> session = lease.session();
  const StateKey key = session->key();
  if (session->CheckNotLost().ok()) {
    const std::optional<size_t> store = parts_.tiers.NumberFrom(parts_.redis.name());
    GDN_RETURN_IF_ERROR(parts_.room.SendDown(lease, store.value_or(0)));
    // If the session came in a new epoch and was not stored since, the store still has it in the old epoch, so it is
    // not given up as orderly.
    const absl::Status given_up = parts_.share().GiveUp(key, /*orderly=*/!session->undurable().any);
    // The session leaves even if this failed: the right may have been given up, so this server must not go on serving
    // it.
    if (!given_up.ok()) {
      spdlog::warn("session id={} leaves this server, but Redis did not confirm that it recorded this: {}", key.id,
                   std::string(given_up.message()));
    }
    ++handed_over_;
  } else if (session->state_is_lost()) {
    // The state is lost. The next server continues from the store's copy in a new epoch, as after a crash.
    static_cast<void>(parts_.share().GiveUp(key, /*orderly=*/false));
  }
  parts_.redis.Forget(key);
  return absl::OkStatus();
}

bool SessionDepartures::HandOver(const StateKey& key) {
  const std::shared_ptr<Session> session = parts_.sessions.Peek(key);
  if (session == nullptr) return parts_.sessions.Knows(key.principal, key.id);
  // A session with a lost state stays here: its client restores it here or deletes it.
  if (session->state_is_lost()) return true;
  group_.Spawn(LeaveAsAsked(session));
  return true;
}

Task<void> SessionDepartures::LeaveAsAsked(std::shared_ptr<Session> session) {
  const absl::Status left = co_await Leave(session);
  if (left.ok()) {
    spdlog::info("session handed over id={}", session->id());
  } else if (ErrorReason(left) != reason::kSessionBusy) {
    spdlog::warn("session id={} is asked for and cannot leave: {}", session->id(), std::string(left.message()));
  }
}

bool SessionDepartures::HandOverAll(absl::Duration timeout, Progress progress) {
  const std::vector<std::shared_ptr<Session>> sessions = parts_.sessions.All();
  const auto work = std::make_shared<Work>(sessions.size(), std::move(progress));
  work->progress(work->all, 0, 0);
  for (const std::shared_ptr<Session>& session : sessions) group_.Spawn(LeaveWithAll(session, work));
  absl::MutexLock lock(&work->mu);
  return AwaitSteadily(work->mu, absl::Condition(work.get(), &Work::ended), timeout) && work->failed == 0;
}

Task<void> SessionDepartures::LeaveWithAll(std::shared_ptr<Session> session, std::shared_ptr<Work> work) {
  const absl::Status left = co_await Leave(session);
  // A session that is being deleted, or was asked for, goes by another task.
  const bool gone = left.ok() || ErrorReason(left) == reason::kSessionBusy;
  if (!gone) spdlog::warn("session id={} cannot leave: {}", session->id(), std::string(left.message()));
  absl::MutexLock lock(&work->mu);
  ++(gone ? work->gone : work->failed);
  work->progress(work->all, work->gone, work->failed);
}

void SessionDepartures::DropUnowned() {
  std::vector<StateKey> unowned;
  for (const std::shared_ptr<Session>& session : parts_.sessions.All()) {
    if (parts_.share().claims().token(session->key()).empty()) unowned.push_back(session->key());
  }
  Drop(unowned);
}

void SessionDepartures::Drop(const std::vector<StateKey>& keys) {
  for (const StateKey& key : keys) {
    const std::shared_ptr<Session> session = parts_.sessions.Peek(key);
    if (session == nullptr) {
      parts_.tiers.Forget(key);  // copies of it that were to be erased now belong to another server
      continue;
    }
    if (session->CheckNotLost().ok()) ++lost_;
    session->StopServing(SessionMoved(key.id));  // at once, so that a running step's result is discarded
    group_.Spawn(Leave(session));
  }
}

}  // namespace gdn
