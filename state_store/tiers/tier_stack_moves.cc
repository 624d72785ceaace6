// TierStack: states that somebody sends down, to a tier of his choice.
#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {
namespace {

constexpr std::array<std::string_view, 3> kNamesBySpeed = {"host", "disk", "redis"};

std::ptrdiff_t SpeedOf(std::string_view name) {
  return std::find(kNamesBySpeed.begin(), kNamesBySpeed.end(), name) - kNamesBySpeed.begin();
}

}  // namespace

std::optional<size_t> TierStack::NumberFrom(std::string_view name) const {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (SpeedOf(tiers_[t]->name()) >= SpeedOf(name)) return t;
  }
  return std::nullopt;
}

absl::Status TierStack::ParkFrom(size_t fastest, const StateKey& key, const SessionImagePtr& image) {
  EraseSomeOwed();
  Owner owner(ledger_, key);
  return StoreFrom(fastest, key, image);
}

absl::Status TierStack::Lower(size_t fastest, const StateKey& key) {
  Owner owner(ledger_, key);
  const size_t place = ledger_.PlaceOf(key);
  if (place == kNowhere || place >= fastest) return absl::OkStatus();
  GDN_ASSIGN_OR_RETURN(const SessionImagePtr image, LoadKnown(place, key));
  return StoreFrom(fastest, key, image);
}

}  // namespace gdn
