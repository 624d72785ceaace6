// Sessions that were stored while principals were digests without a key, 32 digits long: which there are, and how each
// comes under its principal's present digest, at its first use.
//
// Which digest became which is only known once a caller brings what both are made of. The session's states and named
// checkpoints are written anew under the present one, and erased under the old one only then; a process that dies
// between leaves both, and the present one counts.
// Thread safety: all methods from any thread; MoveOver blocks on the tiers. Ownership: what it is made with must
// outlive it.
//
//   legacy.Note(stored.key);            // when a server starts
//   legacy.Learn(/*now=*/digest, old);  // when a caller comes
//   if (legacy.MoveOver(digest, "chat-1").ok()) { ...it is found under its principal now... }
#pragma once

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

class LegacyPrincipals {
 public:
  LegacyPrincipals(SessionManager& sessions, TierStack& tiers) : sessions_(sessions), tiers_(tiers) {}
  LegacyPrincipals(const LegacyPrincipals&) = delete;
  LegacyPrincipals& operator=(const LegacyPrincipals&) = delete;

  // Of what a durable tier has, named checkpoints too; what is under a present digest, or nobody's, is left out.
  void Note(const StateKey& key);
  bool empty() const { return empty_; }
  // `now` and `old` are digests of one principal.
  void Learn(const std::string& now, const std::string& old);
  // The old digest of a principal that has sessions there; "".
  std::string OldOf(std::string_view principal) const;

  // The session is found under its principal from now on. NOT_FOUND where there is none of that name to move; ABORTED
  // (SESSION_BUSY) while it is moved, or written, by others; errors of the tiers.
  absl::Status MoveOver(std::string_view principal, std::string_view id);

 private:
  using Name = std::pair<std::string, std::string>;  // principal, id
  absl::Status Move(const Name& old, const std::string& principal, const std::set<std::string>& checkpoints);
  absl::Status MoveLocked(SessionLease lease, const std::string& principal, const std::set<std::string>& checkpoints);

  SessionManager& sessions_;
  TierStack& tiers_;
  std::atomic<bool> empty_{true};
  mutable absl::Mutex mu_;
  std::map<Name, std::set<std::string>> stored_ ABSL_GUARDED_BY(mu_);  // with the names of checkpoints
  std::map<std::string, std::string, std::less<>> old_of_ ABSL_GUARDED_BY(mu_);
  std::set<Name> moving_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
