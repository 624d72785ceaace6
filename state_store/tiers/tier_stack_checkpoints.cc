// TierStack: a session's newest durable copy: who takes it, where it is, and what it is.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/string_cat.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {
namespace {

// Whether the next tier is asked after this error.
bool IsRefusal(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         ErrorReason(status) == reason::kStatesTakenOver;
}

}  // namespace

absl::StatusOr<StoreResult> TierStack::Checkpoint(const StateKey& key, const SessionImagePtr& image,
                                                  const CheckpointPlaces& places) {
  if (durable_ == kNowhere) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDurableTier,
                     StrCat("no checkpoint of ", key.ToString(),
                            " can be made: the server has no durable tier; start it with --disk-dir or --redis"));
  }
  EraseSomeOwed();
  Owner owner(ledger_, key);
  const bool whole = image->has_all_bases();
  const size_t first = places.first == nullptr || !whole ? durable_ : IndexOf(*places.first);
  const size_t end = whole ? tiers_.size() : durable_ + 1;
  absl::Status refused, unavailable;
  for (size_t t = first; t < end; ++t) {
    absl::StatusOr<std::shared_ptr<void>> quota = std::shared_ptr<void>();
    if (t != first && places.within_quota) quota = TakeQuota(t, key, image->bytes());
    absl::Status status = quota.status();
    if (status.ok()) {
      absl::StatusOr<StoreResult> stored = StoreAt(t, key, image, *std::move(quota));
      if (stored.ok()) EraseCopies(key, ledger_.MoveCheckpoint(t, key, image->bytes()));
      if (!IsRefusal(stored.status())) return stored;
      status = stored.status();
    }
    if (absl::IsUnavailable(status)) unavailable.Update(status);
    refused.Update(status);
  }
  return unavailable.ok() ? refused : unavailable;
}

std::vector<StateTier*> TierStack::DurableTiers() const {
  std::vector<StateTier*> durable;
  for (StateTier* tier : tiers_) {
    if (tier->durable()) durable.push_back(tier);
  }
  return durable;
}

bool TierStack::HasDurableCopy(const StateKey& key) const {
  return std::ranges::any_of(DurableTiers(), [&](const StateTier* tier) { return HasCopy(*tier, key); });
}

BaseVersions TierStack::KnownBases(const StateKey& key) const {
  // An image without bases has no other tier to go to, and what is owed is erased before it is stored.
  if (durable_ == kNowhere || !ledger_.HasCopy(durable_, key) || !Takes(durable_).ok()) return {};
  return tiers_[durable_]->KnownBases(key);
}

void TierStack::RestAtCheckpoint(const StateKey& key, int64_t bytes) {
  Owner owner(ledger_, key);
  const size_t tier = ledger_.Find(key, /*parked=*/false);
  if (tier != kNowhere) ledger_.Park(tier, key, bytes);
}

std::optional<CleanMarker::Copy> TierStack::NewestCopy(const StateKey& key) {
  Owner owner(ledger_, key);
  const size_t tier = ledger_.Find(key, /*parked=*/false);
  const std::optional<TierLedger::Versions> versions = ledger_.VersionsOf(key);
  if (tier == kNowhere || !versions.has_value() || versions->oldest != versions->newest) return std::nullopt;
  return CleanMarker::Copy{.tier = std::string(tiers_[tier]->name()), .version = versions->newest};
}

}  // namespace gdn
