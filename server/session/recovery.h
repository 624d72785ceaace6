// Sessions that an earlier process left in a durable tier.
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
#include "state_store/tiers/clean_marker.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct Recovered {
  int64_t sessions = 0;
  int64_t passed_over = 0;  // of a model that is not served, or not as it was; of no epoch that could follow
  int64_t set_back = 0;     // a tier has an older state than the marker names, or none; among `sessions` if it has one
};

// What a model is served with; nothing where it is not served.
using SpecOfModelFn = std::function<std::optional<SessionSpec>(const std::string& model)>;

// What a stored state says of each of the session's layers.
std::vector<LayerInfo> LayersOf(const StoredSession& stored, const SessionSpec& spec);

// An epoch for what may have lost steps when a durable tier counted so many starts: no other start has it. DATA_LOSS
// (INVALID_STATE_FILE) for a count that cannot be.
absl::StatusOr<int64_t> FirstEpoch(int64_t starts);
// The same for a session whose right has this term (redis_session_claims.h), of which there are many more.
absl::StatusOr<int64_t> EpochOfTerm(int64_t term);

// Takes over a stored session, to be found from now on. `first_epoch`: higher than any that clients can know, where
// steps may be lost; nothing where none are. `tell_tiers` is called before anybody has the session: TierStack::Adopt.
// FAILED_PRECONDITION (STATE_MISMATCH) where it does not fit what is served, ABORTED (SESSION_BUSY) where its name is
// taken, OUT_OF_RANGE (COUNT_LIMIT).
absl::Status AdoptSession(const StoredSession& stored, SessionManager& sessions, const SpecOfModelFn& spec_of,
                          std::optional<int64_t> first_epoch, absl::FunctionRef<void()> tell_tiers);

struct RecoveryParts {
  TierStack& tiers;
  SessionManager& sessions;
  const SpecOfModelFn& spec_of;
};

// Evidence of the steps that were answered before.
struct RecoveryEvidence {
  const CleanMarker* marker = nullptr;  // of an orderly end that nothing came after; nullptr: nothing is vouched for
  int64_t first_epoch = 0;              // of what is not vouched for: higher than any epoch that clients can know
  std::set<std::string> absent = {};    // tiers that the marker may name and that are not reached
};

// Stored states, with the tiers that have them: of sessions whose newest state is elsewhere, and of their checkpoints.
using StoredCopies = std::vector<std::pair<StoredSession, StateTier*>>;
using HeldBack = std::map<StateKey, StoredCopies>;

// Takes over what `durable` tiers of the stack have, fastest first. A session comes back in its epoch if a tier has the
// very version that the marker names. If the marker names an absent tier, and the others have nothing that is later, it
// is held back: another call that is given `held_back` and that tier takes it over. Else its latest copy counts, in a
// new epoch. Copies of sessions that are there already are added to theirs.
absl::StatusOr<Recovered> RecoverSessions(const RecoveryParts& parts, const std::vector<StateTier*>& durable,
                                          const RecoveryEvidence& evidence, HeldBack& held_back);

}  // namespace gdn
