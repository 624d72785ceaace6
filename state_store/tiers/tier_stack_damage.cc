// TierStack: what becomes of a state whose copy in a durable tier is damaged.
#include "state_store/tiers/tier_stack.h"

namespace gdn {

TierStack::DamageOutcome TierStack::HandleDamage(const StateTier& tier, const StateKey& key,
                                                 absl::FunctionRef<bool()> set_aside) {
  Owner owner(ledger_, key);
  const size_t t = IndexOf(tier);
  if (t == kNowhere) return DamageOutcome::kGone;
  // A call for the key may still run there. The next look finds the damage again.
  if (!tiers_[t]->Answers().ok() || !set_aside()) return DamageOutcome::kGone;
  if (!ledger_.HasCopy(t, key)) return DamageOutcome::kLost;  // nobody's here, so it was passed over
  if (UseOtherCopy(t, key)) return DamageOutcome::kCopyUsed;
  return key.checkpoint.empty() && ledger_.PlaceOf(key) != t ? DamageOutcome::kNotDurable : DamageOutcome::kLost;
}

bool TierStack::UseOtherCopy(size_t tier, const StateKey& key) {
  const std::optional<TierLedger::Versions> known = ledger_.VersionsOf(key);
  if (!known.has_value()) return false;  // nothing says which copy is not too old
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (t == tier || !ledger_.HasCopy(t, key)) continue;
    const absl::StatusOr<SessionImagePtr> image = LoadFrom(t, key);
    if (!image.ok()) continue;
    const StateVersion version = (*image)->header.version();
    if (version < known->oldest || (tiers_[t]->durable() && known->newest < version)) continue;
    if (StoreAt(tier, key, *image).ok()) return true;
    if (!tiers_[t]->durable()) continue;
    ledger_.AddNewest(t, key, {.bytes = (*image)->bytes(), .version = version});
    if (ledger_.PlaceOf(key) == tier) ledger_.Park(t, key, (*image)->bytes());
    return true;
  }
  return false;
}

}  // namespace gdn
