// All sessions, by principal and id.
//
// Ids are private to their principal: an id of another principal gets the same answer as an unknown one, and two
// principals may use the same id.
// Thread safety: safe from any thread. Ownership: sessions are shared; a deleted session lives until its last user lets
// go of it.
//
//   GDN_ASSIGN_OR_RETURN(auto creation, manager.Begin(init));
//   if (creation.pending()) { ...put states in by creation.lease()...; creation.Publish(); }
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/task/deadline.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/threads/task_queue.h"
#include "server/admission/byte_ledger.h"
#include "server/session/client_leases.h"
#include "server/session/room/device_room.h"
#include "server/session/session.h"
#include "server/session/session_lease.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

class SessionManager;

// A session that is being created. It is locked, has no states, and others cannot find it until it is published. The
// destructor drops it if it was not published.
class SessionCreation {
 public:
  SessionCreation(SessionCreation&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)),
        key_(std::move(other.key_)),
        session_(std::move(other.session_)),
        lease_(std::move(other.lease_)) {}
  SessionCreation& operator=(SessionCreation&&) = delete;
  ~SessionCreation();

  bool pending() const { return manager_ != nullptr; }  // false: it is published, maybe by an earlier call
  const std::shared_ptr<Session>& session() const { return session_; }
  SessionLease& lease() { return lease_; }
  // Replaces the session by another one with the same key (a fork).
  void Replace(std::shared_ptr<Session> session) { session_ = std::move(session); }
  // Lets others find the session. Does not unlock it: release its lease after that. Does nothing if not pending().
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

// The parts that keep sessions' states. Ended sessions are erased there.
struct SessionPlaces {
  DeviceRoom& room;
  TierStack& tiers;
  TaskQueue& io;       // erases from the tiers, stores reset states
  Executor& executor;  // runs ends that no call waits for
};

class SessionManager {
 public:
  SessionManager(const SessionPlaces& places, SessionEnvironment& environment)
      : places_(places), environment_(environment), group_(places.executor) {}
  SessionManager(const SessionManager&) = delete;
  SessionManager& operator=(const SessionManager&) = delete;

  // Begins to create a session, which is locked and counted at once. An empty id becomes 128 random bits. If the
  // session exists and init.request is the request that created it, returns that session (not pending). Else
  // ALREADY_EXISTS (SESSION_EXISTS). ABORTED (SESSION_BUSY) while the same id is being created or deleted.
  // RESOURCE_EXHAUSTED (BYTES_EXHAUSTED, QUOTA_EXCEEDED) if the account may hold no more sessions or states.
  // UNAVAILABLE (TIER_UNAVAILABLE) for names of SetAway. UNAVAILABLE (SESSION_MOVED) if sessions are shared and this
  // server has no right to the name any more. `snapshot`: the charge in the pool kSnapshots if the id is a snapshot's
  // (IsSnapshotId); it then counts in no other pool here.
  absl::StatusOr<SessionCreation> Begin(SessionInit init, ByteCharge snapshot = {});
  // Adds a session that was found in a tier, where its states are parked, whatever quotas say. `layers`: parallel to
  // init.spec.layers. Returns it locked, so that the caller can tell the tiers first; the lease is invalid if the id is
  // taken. `epoch_is_stored`: the stored state has the epoch of `init`. If not, the session counts as changed until it
  // is stored again.
  SessionLease Adopt(SessionInit init, std::vector<LayerInfo> layers, absl::Time durable_time,
                     bool epoch_is_stored = true);

  // Names a tier that has not answered yet and may have more sessions. Find then returns UNAVAILABLE (TIER_UNAVAILABLE)
  // for unknown sessions. "": all sessions are known.
  void SetUnknownIn(std::string_view tier);
  // Replaces the set of sessions whose newest state is in a tier that cannot be reached; the values are tiers' names.
  // Find and Begin return UNAVAILABLE (TIER_UNAVAILABLE) for them, unless they are here.
  void SetAway(const std::map<StateKey, std::string>& tiers);

  // Finds a published session or snapshot and counts that as a use. NOT_FOUND (SESSION_NOT_FOUND), also while it is
  // created or deleted; UNAVAILABLE (NODE_LEASE_LAPSED, TIER_UNAVAILABLE).
  absl::StatusOr<std::shared_ptr<Session>> Find(std::string_view principal, std::string_view id) const;

  // True if there is a session or snapshot with this name, also while it is created or deleted. Does not count as a
  // use.
  bool Knows(std::string_view principal, std::string_view id) const;
  // Returns the published session with this name, or nullptr; key.checkpoint does not matter. Does not count as a use.
  std::shared_ptr<Session> Peek(const StateKey& key) const;

  // Returns at most `limit` published sessions of the principal with ids after `after` ("": from the first), ascending
  // by id, without snapshots.
  std::vector<std::shared_ptr<Session>> List(const std::string& principal, const std::string& after,
                                             size_t limit) const;
  // Returns the same for the principal's snapshots. `after`: a snapshot's id or "".
  std::vector<std::shared_ptr<Session>> ListSnapshots(const std::string& principal, const std::string& after,
                                                      size_t limit) const;
  // Returns at most `limit` published sessions of all principals after this one of (principal, id), ascending by
  // principal and id. The mutex is released now and then, so sessions that are created or deleted meanwhile may be
  // missing.
  std::vector<std::shared_ptr<Session>> ListAll(const std::pair<std::string, std::string>& after, size_t limit,
                                                bool with_snapshots = true) const;
  // Returns all published sessions of all principals, with snapshots, as ListAll.
  std::vector<std::shared_ptr<Session>> All() const { return ListAll({}, std::numeric_limits<size_t>::max()); }

  // Deletes the session or snapshot and erases its states from every tier. Ends when they are erased, or are noted
  // durably to be erased. ABORTED (SESSION_BUSY) while a step of it runs, another call deletes it or it leaves. Errors
  // of Find; in a fleet those of Session::CheckRestorable; UNAVAILABLE (TIER_UNAVAILABLE) as TierStack::Erase. After
  // any error but NOT_FOUND the session still exists.
  Task<absl::Status> Delete(std::string principal, std::string id);
  // Ends a snapshot that the caller has locked, for want of room, and notes it as lost. Blocks on the tiers. ABORTED
  // (SESSION_BUSY) if another call ends it; UNAVAILABLE (TIER_UNAVAILABLE) as TierStack::Erase. It then still exists.
  absl::Status DropSnapshot(SessionLease& lease);
  // Begins Delete and returns at once; nobody hears of the result.
  void DeleteSoon(std::string principal, std::string id);
  // Waits for running steps, then sets the session back to no tokens, in the same epoch. If a durable tier has a copy
  // of the session, a copy of the reset state replaces it first, so that a crash cannot bring the old state back.
  // `numerics_id`: of that copy. `epoch`: the epoch that the caller knows; nullopt: any. ABORTED (EPOCH_MISMATCH),
  // errors of Session::CheckAlive, DEADLINE_EXCEEDED, CANCELLED, and errors of TierStack::Checkpoint and
  // TierStack::Park. After an error the session is as it was, but may count as not durable.
  Task<absl::Status> Reset(std::shared_ptr<Session> session, std::string numerics_id, Deadline deadline,
                           std::optional<int64_t> epoch);
  // Moves a locked session's states to where another server finds them. Called on a thread that may block.
  using MoveFn = std::function<absl::Status(SessionLease& lease)>;
  // Lets the session leave for another server, after its running steps. If `move` returns OK, nothing of the session is
  // left here, and calls that waited for it are refused with SESSION_MOVED. Else it stays, and the error of `move` is
  // returned. But if it was lost meanwhile (Session::StopServing), `move` is called again. ABORTED (SESSION_BUSY) if
  // the session is being deleted or leaves already.
  Task<absl::Status> Leave(std::shared_ptr<Session> session, MoveFn move);
  // Begins to delete sessions that have expired at `now` or whose lease has ended, and that no call uses now. First
  // ends the leases whose grace has passed. Does nothing while other servers may own the sessions.
  void DeleteExpired(SteadyTime now);
  // Ends the lease and deletes its sessions and snapshots on this server, after their running steps. Returns how many
  // were deleted. DeleteExpired tries the others again.
  Task<int64_t> EndLease(ClientLeasePtr lease);

  ClientLeases& leases() { return leases_; }

  size_t size() const;  // sessions of all principals, with snapshots and those that are being created or deleted
  // Returns size() without snapshots.
  int64_t sessions() const { return static_cast<int64_t>(size()) - environment_.snapshots().size(); }
  int64_t expired() const { return expired_; }

 private:
  friend class SessionCreation;
  using Key = SessionCreation::Key;
  enum class Phase { kMaking, kPublished, kEnding };
  struct Entry {
    std::shared_ptr<Session> session;
    ByteCharge charge;  // charge in the pool kStates; of a snapshot in kSnapshots
    ByteCharge count;   // charge in the pool kSessions; none for a snapshot
    CountedInLease in_lease;
    Phase phase = Phase::kMaking;
    bool leaves = false;  // it leaves for another server; published until it has left
  };

  // Also compares views of keys, so that a lookup allocates no strings.
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

  absl::StatusOr<SessionCreation> BeginUnchecked(SessionInit init, ByteCharge snapshot);
  std::vector<std::shared_ptr<Session>> ListFrom(const std::string& principal, const std::string& after, size_t limit,
                                                 bool snapshots) const;
  void Remove(const Key& key);
  // Ends the leaving of a session that could not leave. Returns false if it was lost meanwhile; then it must leave.
  bool Stays(const Key& key, const Session& session);
  // Returns the session's entry; nullptr if the session is not published, is being deleted, or leaves already.
  Entry* FreeEntryOf(const Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Mark the session as leaving or as ending. False, with nothing changed, if FreeEntryOf has no entry of it.
  bool BeginLeave(const Session& session);
  bool BeginEnd(const Session& session);
  // True if the session with this key is being deleted.
  bool Ends(const Key& key) const;
  // Deletes a session for which BeginEnd has returned true. `even_unnoted`: as for TierStack::Erase.
  Task<absl::Status> End(std::shared_ptr<Session> session, bool even_unnoted);
  absl::Status EraseLocked(SessionLease& lease, bool even_unnoted);
  // Resets a session of which a tier has a state or a durable copy.
  absl::Status ResetStored(SessionLease& lease, const std::string& numerics_id);

  const SessionPlaces places_;
  SessionEnvironment& environment_;
  std::atomic<int64_t> expired_{0};
  ClientLeases leases_{environment_.clock()};
  mutable absl::Mutex mu_;
  absl::Status CheckNotAway(std::string_view principal, std::string_view id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::string unknown_in_ ABSL_GUARDED_BY(mu_);
  std::map<Key, std::string, KeyLess> away_ ABSL_GUARDED_BY(mu_);
  std::map<Key, Entry, KeyLess> sessions_ ABSL_GUARDED_BY(mu_);

  TaskGroup group_;  // last: its tasks use all of the above
};

}  // namespace gdn
