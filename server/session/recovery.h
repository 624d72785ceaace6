// Sessions that an earlier process left in a durable tier.
//
// Thread safety: RecoverSessions once, before the server takes calls; the rest from any thread. Ownership: fills the
// manager and the stack.
//
//   GDN_ASSIGN_OR_RETURN(Recovered recovered, RecoverSessions(tiers, durable_tiers, sessions, legacy, spec_of, epoch));
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/session/legacy_principals.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct Recovered {
  int64_t sessions = 0;
  int64_t passed_over = 0;  // of a model that is not served, or not as it was; of no epoch that could follow
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

// `durable`: the stack's durable tiers, fastest first; of two copies of a session the later one counts. `first_epoch`:
// of sessions whose last steps may be lost, higher than any epoch that clients can know; nothing after an orderly end.
absl::StatusOr<Recovered> RecoverSessions(TierStack& tiers, const std::vector<StateTier*>& durable,
                                          SessionManager& sessions, LegacyPrincipals& legacy,
                                          const SpecOfModelFn& spec_of, std::optional<int64_t> first_epoch);

}  // namespace gdn
