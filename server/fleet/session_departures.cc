#include "server/fleet/session_departures.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/stop_signal.h"
#include "server/session/session_errors.h"

namespace gdn {

absl::Status SessionDepartures::Store(SessionLease& lease) {
  const std::shared_ptr<Session> session = lease.session();
  const StateKey key = session->key();
  if (session->CheckNotLost().ok()) {
    const std::optional<size_t> store = parts_.tiers.NumberFrom(parts_.redis.name());
    GDN_RETURN_IF_ERROR(parts_.room.SendDown(lease, store.value_or(0)));
    // A session that came in a new epoch and was not stored since is in the store as it was in the old one.
    const absl::Status given_up = parts_.share.GiveUp(key, /*orderly=*/!session->undurable().any);
    // Whatever the store says: it is not served here under a right that may be given up at any moment.
    if (!given_up.ok()) {
      spdlog::warn("session id={} leaves, and whether the store knows is not known: {}", key.id,
                   std::string(given_up.message()));
    }
    ++handed_over_;
  } else if (session->state_is_lost()) {
    // Its state is lost: whoever takes it goes on from the store's copy, in a new epoch, as after a crash.
    static_cast<void>(parts_.share.GiveUp(key, /*orderly=*/false));
  }
  parts_.redis.Forget(key);
  return absl::OkStatus();
}

bool SessionDepartures::HandOver(const StateKey& key) {
  const std::shared_ptr<Session> session = parts_.sessions.Peek(key);
  if (session == nullptr) return parts_.sessions.Knows(key.principal, key.id);
  // One whose state is lost is not handed to another server: its client restores it here, or ends it.
  if (session->state_is_lost()) return true;
  parts_.sessions.Leave(
      session, [self = shared_from_this()](SessionLease& lease) { return self->Store(lease); },
      [id = key.id](const absl::Status& left) {
        if (left.ok()) {
          spdlog::info("session handed over id={}", id);
        } else if (ErrorReason(left) != reason::kSessionBusy) {
          spdlog::warn("session id={} is asked for and cannot leave: {}", id, std::string(left.message()));
        }
      });
  return true;
}

bool SessionDepartures::HandOverAll(absl::Duration timeout, const Progress& progress) {
  struct Work {
    absl::Mutex mu;
    int64_t all = 0;
    int64_t gone ABSL_GUARDED_BY(mu) = 0;
    int64_t failed ABSL_GUARDED_BY(mu) = 0;
    StopSignal ended;
  };
  const auto work = std::make_shared<Work>();
  const std::vector<std::shared_ptr<Session>> sessions = parts_.sessions.All();
  work->all = static_cast<int64_t>(sessions.size());
  progress(work->all, 0, 0);
  if (sessions.empty()) return true;
  for (const std::shared_ptr<Session>& session : sessions) {
    parts_.sessions.Leave(
        session, [self = shared_from_this()](SessionLease& lease) { return self->Store(lease); },
        [work, progress, session](const absl::Status& left) {
          // One that ends, or was asked for, goes without this.
          const bool gone = left.ok() || ErrorReason(left) == reason::kSessionBusy;
          if (!gone) spdlog::warn("session id={} cannot leave: {}", session->id(), std::string(left.message()));
          absl::MutexLock lock(&work->mu);
          ++(gone ? work->gone : work->failed);
          progress(work->all, work->gone, work->failed);
          if (work->gone + work->failed == work->all) work->ended.Give();
        });
  }
  if (!work->ended.GivenWithin(timeout)) return false;
  absl::MutexLock lock(&work->mu);
  return work->failed == 0;
}

void SessionDepartures::DropUnowned() {
  std::vector<StateKey> unowned;
  for (const std::shared_ptr<Session>& session : parts_.sessions.All()) {
    if (parts_.share.claims().token(session->key()).empty()) unowned.push_back(session->key());
  }
  Drop(unowned);
}

void SessionDepartures::Drop(const std::vector<StateKey>& keys) {
  for (const StateKey& key : keys) {
    const std::shared_ptr<Session> session = parts_.sessions.Peek(key);
    if (session == nullptr) {
      parts_.tiers.Forget(key);  // what was to be erased of it is another's now
      continue;
    }
    if (session->CheckNotLost().ok()) ++lost_;
    session->StopServing(SessionMoved(key.id));  // at once: a step that runs ends without an answer
    parts_.sessions.Leave(
        session, [self = shared_from_this()](SessionLease& lease) { return self->Store(lease); },
        [](const absl::Status&) {});
  }
}

}  // namespace gdn
