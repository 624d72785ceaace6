// The part of TierStack for a session's named checkpoints: lists, counts and erases them.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

absl::StatusOr<std::vector<StoredSession>> TierStack::ListCheckpoints(const StateKey& session) {
  Owner owner(ledger_, session);
  std::vector<StoredSession> checkpoints;
  for (const auto& [key, tier] : ledger_.NamedCheckpoints(session)) {
    absl::StatusOr<StoredSession> stored = tiers_[tier]->Describe(key);
    ledger_.Note(tier, key, stored.status());
    if (absl::IsNotFound(stored.status())) continue;  // the tier has lost it
    if (absl::IsDataLoss(stored.status())) {
      checkpoints.emplace_back().key = key;
      continue;
    }
    GDN_RETURN_IF_ERROR(stored.status());
    checkpoints.push_back(*std::move(stored));
  }
  return checkpoints;
}

absl::Status TierStack::CheckNamedCheckpoints(const StateKey& key) const {
  const auto named = ledger_.NamedCheckpoints(key);
  const bool there = std::any_of(named.begin(), named.end(), [&key](const auto& entry) { return entry.first == key; });
  if (key.checkpoint.empty() || there || named.size() < kMostNamedCheckpoints) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kTooManyCheckpoints,
                   StrCat("sessions/", key.id, " has ", named.size(), " named checkpoints, of ", kMostNamedCheckpoints,
                          " that it may have; DeleteCheckpoint one that is of no use (ListCheckpoints has them), or "
                          "use an id again"),
                   {{"session", StrCat("sessions/", key.id)},
                    {"checkpoint", key.checkpoint},
                    {"limit", StrCat(kMostNamedCheckpoints)}});
}

absl::Status TierStack::EraseCheckpoint(const StateKey& key) {
  Owner owner(ledger_, key);
  absl::Status error;
  bool found = false;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (ledger_.HasCopy(t, key)) {
      ledger_.DropCopy(t, key);
    } else if (!ledger_.Owes(t, key)) {
      continue;
    }
    found = true;
    absl::Status status = Takes(t);
    if (!absl::IsUnavailable(status)) status = EraseOwed(t, key);
    error.Update(status);
  }
  if (found) return error;
  return MakeError(
      absl::StatusCode::kNotFound, reason::kCheckpointNotFound,
      StrCat("sessions/", key.id, " has no checkpoint '", key.checkpoint, "'; ListCheckpoints has those it has"),
      {{"session", StrCat("sessions/", key.id)}, {"checkpoint", key.checkpoint}});
}

}  // namespace gdn
