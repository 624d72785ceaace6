// Interface for accounting: which account (holder) is charged for a state in a tier, and whose state is evicted first.
//
// Thread safety: safe from any thread. All methods except GiveWay are called under a TierLedger's lock, so they must
// not call that ledger's stack, nor wait for a thread that does. Ownership: outlives the stack and its charges.
//
//   TierLedgerOptions options{.holders = &holders};
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class TierHolders {
 public:
  // Identifies a holder by its address.
  using Holder = std::shared_ptr<void>;

  virtual ~TierHolders() = default;
  // Returns the holder that is charged for the key's states.
  virtual Holder HolderOf(const StateKey& key) = 0;
  // Charges the holder for bytes of the key in the tier ("host", "disk", "redis"), until the result is destroyed.
  virtual std::shared_ptr<void> Charge(std::string_view tier, const StateKey& key, const Holder& holder,
                                       int64_t bytes) = 0;
  // Reserves bytes of the holder's quota in the tier for a state that is to be stored, until the result is destroyed.
  // RESOURCE_EXHAUSTED (QUOTA_EXCEEDED) if that exceeds the quota. Without quotas, the result is empty.
  virtual absl::StatusOr<std::shared_ptr<void>> TryCharge(std::string_view tier, const Holder& holder, int64_t bytes) {
    (void)tier, (void)holder, (void)bytes;
    return std::shared_ptr<void>();
  }
  // Called after TryCharge was refused. Frees cached data of the holder in the tier that no session needs. True if it
  // freed some, so that the caller tries TryCharge again.
  virtual bool GiveWay(std::string_view tier, const Holder& holder) {
    (void)tier, (void)holder;
    return false;
  }
  // Returns the holder's bytes in the tier divided by its share of the tier; at least 1. The tier evicts first from the
  // holder with the highest result.
  virtual double SharesHeld(std::string_view tier, const Holder& holder) const = 0;
};

}  // namespace gdn
