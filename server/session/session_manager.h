// All sessions, by principal and id.
//
// Ids are private to their principal: a foreign id and an unknown one answer alike, and two principals may use the same
// id.
// Thread safety: safe from any thread. Ownership: sessions are shared; a deleted one lives until its last lease ends.
//
//   GDN_ASSIGN_OR_RETURN(auto creation, manager.Begin(init));
//   if (creation.pending()) { ...put states in by creation.lease()...; creation.Publish(); }
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task_queue.h"
#include "server/admission/byte_ledger.h"
#include "server/session/device_room.h"
#include "server/session/session.h"
#include "server/session/session_lease.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

class SessionManager;

// A session in the making: locked, without states, and not to be found by others until it is published; given up on
// destruction.
class SessionCreation {
 public:
  SessionCreation(SessionCreation&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)),
        key_(std::move(other.key_)),
        session_(std::move(other.session_)),
        lease_(std::move(other.lease_)) {}
  SessionCreation& operator=(SessionCreation&&) = delete;
  ~SessionCreation();

  bool pending() const { return manager_ != nullptr; }  // false: the session was there already, by the same request
  const std::shared_ptr<Session>& session() const { return session_; }
  SessionLease& lease() { return lease_; }
  // Puts another session, of the same key, in the place of the one begun: a fork.
  void Replace(std::shared_ptr<Session> session) { session_ = std::move(session); }
  void Publish();

 private:
  friend class SessionManager;
  using Key = std::pair<std::string, std::string>;
  SessionCreation(SessionManager* manager, Key key, std::shared_ptr<Session> session, SessionLease lease)
      : manager_(manager), key_(std::move(key)), session_(std::move(session)), lease_(std::move(lease)) {}

  SessionManager* manager_;
  Key key_;
  std::shared_ptr<Session> session_;
  SessionLease lease_;
};

// Where an ended session's states may be.
struct SessionPlaces {
  DeviceRoom& room;
  TierStack& tiers;
  TaskQueue& io;       // erases from the tiers
  Executor& executor;  // of ends that no call waits for
};

class SessionManager {
 public:
  SessionManager(const SessionPlaces& places, SessionEnvironment& environment)
      : places_(places), environment_(environment), group_(places.executor) {}
  SessionManager(const SessionManager&) = delete;
  SessionManager& operator=(const SessionManager&) = delete;

  // An empty id becomes 128 random bits. init.request identifies the creating request: the same again finds the
  // session, another is ALREADY_EXISTS (SESSION_EXISTS). ABORTED (SESSION_BUSY) while the same id is being made or
  // ended. RESOURCE_EXHAUSTED (BYTES_EXHAUSTED, QUOTA_EXCEEDED) where the account may hold no more sessions.
  // UNAVAILABLE (SESSION_MOVED) where servers share sessions and the right to the name has gone.
  absl::StatusOr<SessionCreation> Begin(SessionInit init);
  // A session whose states are parked already, found in a tier; locked, until the tiers know of it. Invalid where its
  // id is taken. `epoch_is_stored`: the stored state has the epoch of `init`; else the session counts as moved until
  // it is stored again.
  SessionLease Adopt(SessionInit init, std::vector<LayerInfo> layers, absl::Time durable_time,
                     bool epoch_is_stored = true);

  // Whether there may be sessions in a tier that has not answered yet (its name): Find then has UNAVAILABLE
  // (TIER_UNAVAILABLE) for what it does not know. "": all are known.
  void SetUnknownIn(std::string_view tier);
  // Sessions whose newest state is in a tier that is not to be reached, with its name: what is done with them, or with
  // their names, is UNAVAILABLE (TIER_UNAVAILABLE).
  void SetAway(const std::map<StateKey, std::string>& tiers);

  // NOT_FOUND (SESSION_NOT_FOUND); UNAVAILABLE (NODE_LEASE_LAPSED).
  absl::StatusOr<std::shared_ptr<Session>> Find(std::string_view principal, std::string_view id) const;

  // Whether there is a session of the name, in whatever state; it does not count as a use.
  bool Knows(std::string_view principal, std::string_view id) const;
  // The session of the name, for what is no call of it; nullptr.
  std::shared_ptr<Session> Peek(const StateKey& key) const;

  // At most `limit` sessions of the principal with ids after `after`, ascending by id.
  std::vector<std::shared_ptr<Session>> List(const std::string& principal, const std::string& after,
                                             size_t limit) const;
  // At most `limit` sessions of all principals after this one of (principal, id), ascending by principal and id.
  std::vector<std::shared_ptr<Session>> ListAll(const std::pair<std::string, std::string>& after, size_t limit) const;
  // Of all principals, but perhaps for some that are made or end meanwhile: calls are let in between.
  std::vector<std::shared_ptr<Session>> All() const;

  // Ends the session and erases its states from every tier; done when they are gone, or are noted to go, for good.
  // NOT_FOUND (SESSION_NOT_FOUND), ABORTED (SESSION_BUSY) while a step of it runs or another call ends it, UNAVAILABLE
  // (TIER_UNAVAILABLE) as of TierStack::Erase: it goes on then.
  Task<absl::Status> Delete(std::string principal, std::string id);
  // The same, without anybody who waits for it.
  void DeleteSoon(std::string principal, std::string id);
  // What takes a locked session's states to another server; on a thread that may block.
  using MoveFn = std::function<absl::Status(SessionLease& lease)>;
  // The session goes on at another server. Once `move` is OK nothing is left of it here, and calls that waited for it
  // are refused with SESSION_MOVED. Else it stays; but if it was lost meanwhile (Session::StopServing), `move` is
  // called again. ABORTED (SESSION_BUSY) if it ends or leaves already.
  Task<absl::Status> Leave(std::shared_ptr<Session> session, MoveFn move);
  // Ends the sessions whose time is over, once each, as soon as no step of theirs runs.
  void DeleteExpired(SteadyTime now);

  size_t size() const;  // of all principals
  int64_t expired() const { return expired_; }

 private:
  friend class SessionCreation;
  using Key = SessionCreation::Key;
  enum class Phase { kMaking, kPublished, kEnding };
  struct Entry {
    std::shared_ptr<Session> session;
    ByteCharge charge;  // of the pool kStates
    ByteCharge count;   // of kSessions
    Phase phase = Phase::kMaking;
    bool leaves = false;  // to another server; it is published until it has
  };

  // Compares views of keys too, so that a lookup makes no strings.
  struct KeyLess {
    using is_transparent = void;
    using View = std::pair<std::string_view, std::string_view>;
    static View ViewOf(const Key& key) { return key; }
    static View ViewOf(const View& view) { return view; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return ViewOf(a) < ViewOf(b);
    }
  };

  absl::StatusOr<SessionCreation> BeginUnchecked(SessionInit init);
  void Remove(const Key& key);
  // One that could not leave is there for others again; false where it was lost meanwhile.
  bool Stays(const Key& key, const Session& session);
  // False if it ends or leaves already.
  bool BeginLeave(const Key& key, const Session& session);
  // False where somebody else ends it already, or it leaves.
  bool BeginEnd(const Key& key, const std::shared_ptr<Session>& session);
  bool Ends(const Key& key) const;
  // One that BeginEnd has taken.
  Task<absl::Status> End(std::shared_ptr<Session> session, bool even_unnoted);
  absl::Status EraseLocked(SessionLease& lease, bool even_unnoted);

  const SessionPlaces places_;
  SessionEnvironment& environment_;
  std::atomic<int64_t> expired_{0};
  mutable absl::Mutex mu_;
  absl::Status CheckNotAway(std::string_view principal, std::string_view id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::string unknown_in_ ABSL_GUARDED_BY(mu_);
  std::map<Key, std::string, KeyLess> away_ ABSL_GUARDED_BY(mu_);
  std::map<Key, Entry, KeyLess> sessions_ ABSL_GUARDED_BY(mu_);

  TaskGroup group_;  // last: its tasks use all of the above
};

}  // namespace gdn
