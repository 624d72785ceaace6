// Which sessions of a shared Redis prefix are this server's: the right to each by itself, where RedisClaim has one for
// all.
//
// A session's hash has the field "server": whose it is, and a term, which no two rights have the same of; PREFIXterms
// counts them, apart from servers' starts.
//   SERVER TERM   that server's, for as long as its lease lasts (redis_node.h)
//   - TERM        nobody's, and what is stored is all that ever happened to it: it was given up in order
//   ! TERM        nobody's; steps may have happened that are not in what is stored
// Terms tell a later right from an earlier one, as RedisClaim's ids do: a smaller one in the store, or none, is a store
// that has gone back. Where this server was without a lease meanwhile, none is a session that another one has ended.
// A store that counts fewer terms than this server has seen has gone back, too: what it says was given up in order may
// have been taken and stepped since, so it is not believed.
// Thread safety: safe from any thread; calls of one key are made one at a time. Ownership: values.
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
#include "state_store/tiers/redis_connection.h"
#include "state_store/tiers/redis_fence.h"

namespace gdn {

// What came of asking for a session.
struct TakenSession {
  enum Outcome {
    kNone,   // there is none
    kMade,   // there was none; its name is this server's now
    kTaken,  // it is this server's now, and what is stored of it is to be had
    kHeld,   // another server with a lease has it
  };
  Outcome outcome = kNone;
  bool orderly = false;     // kTaken: what is stored is all that ever happened
  int64_t term = 0;         // kTaken
  std::string holder;       // kHeld: the server's id
  std::string holder_name;  // and what it is called
};

class RedisSessionClaims final : public RedisFence {
 public:
  // `server`: this one's id, without a space. `incarnation_key`: how many servers have begun with the prefix.
  RedisSessionClaims(std::string prefix, std::string server, std::string incarnation_key)
      : prefix_(std::move(prefix)), server_(std::move(server)), incarnation_key_(std::move(incarnation_key)) {}
  // Whether the lease is good, so that a right that is gone from the store was not taken; before any session.
  void SetLeaseCheck(std::function<bool()> is_good) { lease_is_good_ = std::move(is_good); }

  const std::string& server() const { return server_; }

  // With `make`, a name that nobody has becomes this server's. Errors of the connection; UNAVAILABLE where this server
  // has no lease at the store.
  absl::StatusOr<TakenSession> Take(RedisConnection& redis, const StateKey& session, bool make);
  // Anybody may take it from now on. `orderly` as TakenSession's. This server relies on it no more, whatever comes of
  // it: after an error the store may say either, and who wants the session takes it again, under a higher term.
  absl::Status GiveUp(RedisConnection& redis, const StateKey& session, bool orderly);
  // The same for a session that is not here, whose right may be unknown here too, as after a lost answer. Nothing
  // happens if `is_here` says that it is. It is called with the claims locked, so it must not call them: nobody sees
  // the right of a session that is here gone, and a session made after that finds no right.
  absl::Status GiveBack(RedisConnection& redis, const StateKey& session, absl::FunctionRef<bool()> is_here);
  // Nothing is to be known of the session any more.
  void Forget(const StateKey& session);
  // Asks the store for its count of terms, to learn whether it has gone back. Errors of the connection.
  absl::Status LookAtTerms(RedisConnection& redis);

  // Adds the sessions that are this server's no more to `lost`, and forgets them. `lapsed`: the lease had run out, so
  // that others may have taken what this server has, and ended it. Errors of the connection: ask again, with `lapsed`
  // where it was.
  absl::Status FindLost(RedisConnection& redis, bool lapsed, std::vector<StateKey>& lost);
  // How often a right was found gone from the store that this server had, and never lost; or terms that it had seen.
  int64_t set_backs() const { return set_backs_; }

  // As RedisFence's, of each session by itself.
  std::string OwnerKey(const StateKey& key) const override;
  std::string token(const StateKey& key) const override;
  absl::Status lost(const StateKey& key) const override;
  absl::Status Recover(RedisConnection& redis, const StateKey& key, const absl::Status& fenced) override;

 private:
  struct Claim {
    int64_t term = 0;
    int64_t lapses = 0;  // as lapses_ was when the right was last known to be good
  };
  static StateKey SessionOf(const StateKey& key);
  // Whether a store that says `owner` of what is this server's by `claim` has gone back.
  bool HasGoneBack(std::string_view owner, const Claim& claim) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string TokenOf(int64_t term) const;
  std::optional<Claim> Extract(const StateKey& session);
  int64_t highest_term() const;
  // The store counts so many terms now; `seen`: the most that this server had seen before it asked.
  void NoteTerms(int64_t terms, int64_t seen);

  const std::string prefix_;
  const std::string server_;
  const std::string incarnation_key_;
  std::function<bool()> lease_is_good_ = [] { return true; };
  std::atomic<int64_t> set_backs_{0};
  mutable absl::Mutex mu_;
  int64_t lapses_ ABSL_GUARDED_BY(mu_) = 0;             // of the lease
  int64_t highest_term_ ABSL_GUARDED_BY(mu_) = 0;       // that the store was seen to have
  int64_t distrusted_until_ ABSL_GUARDED_BY(mu_) = -1;  // rights given up under terms up to this one are of before
  std::map<StateKey, Claim> claims_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
