// Sessions that an earlier process left in a durable tier.
//
// Thread safety: call once, before the server takes calls. Ownership: fills the manager and the stack.
//
//   GDN_ASSIGN_OR_RETURN(Recovered recovered, RecoverSessions(tiers, durable_tiers, sessions, legacy, spec_of, epoch));
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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

// `durable`: the stack's durable tiers, fastest first; of two copies of a session the later one counts. `first_epoch`:
// of sessions whose last steps may be lost, higher than any epoch that clients can know; nothing after an orderly end.
absl::StatusOr<Recovered> RecoverSessions(TierStack& tiers, const std::vector<StateTier*>& durable,
                                          SessionManager& sessions, LegacyPrincipals& legacy,
                                          const SpecOfModelFn& spec_of, std::optional<int64_t> first_epoch);

}  // namespace gdn
