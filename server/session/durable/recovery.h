// Takes over sessions that an earlier process left in a durable tier.
//
// Thread safety: RecoverSessions once, before the server takes calls; the rest from any thread. Ownership: fills the
// manager and the stack.
//
//   GDN_ASSIGN_OR_RETURN(Recovered recovered, RecoverSessions(parts, durable_tiers, evidence, held_back));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/disk/clean_marker.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct Recovered {
  int64_t sessions = 0;
  int64_t passed_over = 0;  // stored sessions that AdoptSession refused; they stay where they are
  // Sessions whose version in the marker no tier has any more. If a tier has an older copy, the session continues from
  // it and counts in `sessions` too.
  int64_t set_back = 0;
};

// Returns the spec of a model; nothing if the model is not served.
using SpecOfModelFn = std::function<std::optional<SessionSpec>(const std::string& model)>;

// Returns what a stored state says about each layer of the session, parallel to spec.layers. A layer that it does not
// have is fresh.
std::vector<LayerInfo> LayersOf(const StoredSession& stored, const SessionSpec& spec);

// Returns an epoch for sessions that may have lost steps, by the number of starts that a durable tier has counted. No
// other start gets the same epoch. DATA_LOSS (INVALID_STATE_FILE) for a number that is not possible.
absl::StatusOr<int64_t> FirstEpoch(int64_t starts);
// Returns an epoch for a session whose right has this term (redis_session_claims.h). No other term gets the same epoch.
// DATA_LOSS (INVALID_STATE_FILE) for a term that is not possible. Many more terms than starts are possible.
absl::StatusOr<int64_t> EpochOfTerm(int64_t term);

// Takes over a stored session, which can be found from then on. `first_epoch`: an epoch above all that clients can
// know, if steps may be lost; the session then begins in it, or after its own if that is later. nullopt: no steps are
// lost, and it keeps its epoch. `tell_tiers` is called before anybody can use the session, and calls TierStack::Adopt.
// FAILED_PRECONDITION (STATE_MISMATCH) if the session does not fit what is served, ABORTED (SESSION_BUSY) if its name
// is taken, OUT_OF_RANGE (COUNT_LIMIT) if no epoch can follow.
absl::Status AdoptSession(const StoredSession& stored, SessionManager& sessions, const SpecOfModelFn& spec_of,
                          std::optional<int64_t> first_epoch, absl::FunctionRef<void()> tell_tiers);

struct RecoveryParts {
  TierStack& tiers;
  SessionManager& sessions;
  const SpecOfModelFn& spec_of;
};

// Evidence about the steps that were answered before.
struct RecoveryEvidence {
  const CleanMarker* marker = nullptr;  // left by an orderly shutdown after which nothing came; nullptr: there is none
  // Epoch for sessions that the marker does not confirm, above all epochs that clients can know.
  int64_t first_epoch = 0;
  std::set<std::string> absent = {};  // tiers that the marker may name and that cannot be reached
};

// StoredCopies: copies of one stored state, each with its tier. HeldBack: by key, the copies of sessions that are held
// back, and of their named checkpoints. The marker names a newer state of these sessions, in a tier that cannot be
// reached.
using StoredCopies = std::vector<std::pair<StoredSession, StateTier*>>;
using HeldBack = std::map<StateKey, StoredCopies>;

// Takes over what is in the tiers `durable` of the stack, fastest first. A session keeps its epoch if a tier has
// exactly the version that the marker names. If the marker names an absent tier and the other tiers have nothing later,
// the session is held back: another call with `held_back` and that tier takes it over. In all other cases the latest
// copy counts, in a new epoch. Copies of sessions that are served already are added to theirs. Errors of
// StateTier::List; nothing is taken over then.
absl::StatusOr<Recovered> RecoverSessions(const RecoveryParts& parts, const std::vector<StateTier*>& durable,
                                          const RecoveryEvidence& evidence, HeldBack& held_back);

}  // namespace gdn
