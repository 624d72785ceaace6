// This server's rights to sessions of a shared Redis prefix: one right for each session. (RedisClaim has one right for
// the whole prefix.)
//
// A session's hash has the field "server": its owner and a term. Each right gets a new term, counted by PREFIXterms.
//   SERVER TERM   the session is that server's, as long as its lease lasts (redis_share.h)
//   - TERM        no owner; the session was given up in order, so the stored state has all of its steps
//   ! TERM        no owner; steps may have been applied that the stored state lacks
// Terms tell later rights from earlier ones. If the store has a smaller term than this server's, or no owner, then the
// store was set back. But after this server was without a lease, no owner may also mean that another server has ended
// the session. If PREFIXterms is less than this server has seen, the store was set back too. Sessions that it then says
// were given up in order may have been stepped since, so these are not treated as orderly.
// Thread safety: safe from any thread; calls for one key must be made one at a time. Ownership: values.
//
//   GDN_ASSIGN_OR_RETURN(const TakenSession taken, claims.Take(redis, key, /*make=*/false));
//   if (taken.outcome == TakenSession::kHeld) ...ask taken.holder for it...
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "state_store/tiers/redis/redis_connection.h"
#include "state_store/tiers/redis/redis_fence.h"

namespace gdn {

// Returns the name of the Redis key that is the server's lease (redis_share.h).
std::string RedisLeaseKey(std::string_view prefix, std::string_view server);

// The result of RedisSessionClaims::Take.
struct TakenSession {
  enum Outcome {
    kNone,   // there is no such session
    kMade,   // there was no such session; this server now has the right to the name
    kTaken,  // this server now has the right to the session, and can load the stored state
    kHeld,   // another server with a lease has the right
  };
  Outcome outcome = kNone;
  bool orderly = false;     // kTaken: the stored state has all steps of the session
  int64_t term = 0;         // kMade and kTaken: the term of this server's right
  std::string holder;       // kHeld: id of the server that has the right
  std::string holder_name;  // kHeld: its name in messages
};

class RedisSessionClaims final : public RedisFence {
 public:
  // `server`: this server's id, without spaces. `incarnation_key`: RedisClaim::IncarnationKey.
  RedisSessionClaims(std::string prefix, std::string server, std::string incarnation_key)
      : prefix_(std::move(prefix)), server_(std::move(server)), incarnation_key_(std::move(incarnation_key)) {}
  // Sets a function that returns true while the lease is valid, so that a right that is missing in the store cannot
  // have been taken by another server. Call it before the first Take.
  void SetLeaseCheck(std::function<bool()> is_good) { lease_is_good_ = std::move(is_good); }

  const std::string& server() const { return server_; }

  // Takes the right to a session, unless another server with a lease has it. With `make`, also takes the name of a
  // session that does not exist. Errors of the connection. UNAVAILABLE if this server has no lease in the store.
  absl::StatusOr<TakenSession> Take(RedisConnection& redis, const StateKey& session, bool make);
  // Gives the right up, so that any server may take it. `orderly`: see TakenSession. Does nothing if this object has no
  // record of the right. This server forgets the right also after an error: those of the connection, or IsFenced if
  // another server has the session. The store may then have the old or the new entry; the next Take gets a higher term
  // in any case.
  absl::Status GiveUp(RedisConnection& redis, const StateKey& session, bool orderly);
  // Gives up the right to a name whose session is not on this server, even if this object does not know the right (as
  // after a lost reply). Does nothing if is_here() returns true: the session keeps its right. is_here runs under this
  // object's lock and must not call this object, so no session of the name can be made meanwhile.
  absl::Status GiveBack(RedisConnection& redis, const StateKey& session, absl::FunctionRef<bool()> is_here);
  // Drops this object's record of the session. The store is not changed.
  void Forget(const StateKey& session);
  // Reads the store's count of terms, to notice if it was set back. Errors of the connection.
  absl::Status LookAtTerms(RedisConnection& redis);

  // Asks the store for every session that this server has a right to. Adds those to which it has lost the right to
  // `lost`, and forgets them. `lapsed`: the lease had expired, so others may have taken and ended sessions of this
  // server. Errors of the connection: call again with the same `lapsed`.
  absl::Status FindLost(RedisConnection& redis, bool lapsed, std::vector<StateKey>& lost);
  // Number of times that the store was found set back: a right that this server never lost was missing there, or terms.
  int64_t set_backs() const { return set_backs_; }

  // Implements RedisFence with a token for each session. lost() is always OK.
  std::string OwnerKey(const StateKey& key) const override;
  std::string token(const StateKey& key) const override;
  absl::Status lost(const StateKey& key) const override;
  absl::Status Recover(RedisConnection& redis, const StateKey& key, const absl::Status& fenced) override;

 private:
  struct Claim {
    int64_t term = 0;
    int64_t lapses = 0;  // value of lapses_ when the store last had this right
  };
  static StateKey SessionOf(const StateKey& key);
  // True if the store must have been set back, because it names `owner` for a session to which this server has `claim`.
  bool HasGoneBack(std::string_view owner, const Claim& claim) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string TokenOf(int64_t term) const;
  std::optional<Claim> Extract(const StateKey& session);
  int64_t highest_term() const;
  // Records `terms`, the store's count of terms. `seen`: the highest term known before the store was asked. If `terms`
  // is less, the store was set back, and sessions given up by then do not count as orderly any more.
  void NoteTerms(int64_t terms, int64_t seen);

  const std::string prefix_;
  const std::string server_;
  const std::string incarnation_key_;
  std::function<bool()> lease_is_good_ = [] { return true; };
  std::atomic<int64_t> set_backs_{0};
  mutable absl::Mutex mu_;
  int64_t lapses_ ABSL_GUARDED_BY(mu_) = 0;        // number of times that the lease has expired
  int64_t highest_term_ ABSL_GUARDED_BY(mu_) = 0;  // highest term seen in the store
  // Sessions that were given up under a term up to this one do not count as orderly; -1: all terms are trusted.
  int64_t distrusted_until_ ABSL_GUARDED_BY(mu_) = -1;
  std::map<StateKey, Claim> claims_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
