// Whose the bytes in the tiers are: who is charged for them, and who gives way first where others need the room.
//
// Thread safety: safe from any thread. It is asked with a TierLedger's lock held, but for GiveWay, so it must not call
// that ledger's stack, nor wait for one that does. Ownership: outlives the stack and what it has charged.
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
  // One holder has one address.
  using Holder = std::shared_ptr<void>;

  virtual ~TierHolders() = default;
  virtual Holder HolderOf(const StateKey& key) = 0;
  // The holder has so many bytes of the key in the tier ("host", "disk", "redis"), until the result dies.
  virtual std::shared_ptr<void> Charge(std::string_view tier, const StateKey& key, const Holder& holder,
                                       int64_t bytes) = 0;
  // The same for what is to be put there; RESOURCE_EXHAUSTED where the holder may not have so many more bytes there.
  virtual absl::StatusOr<std::shared_ptr<void>> TryCharge(std::string_view tier, const Holder& holder, int64_t bytes) {
    (void)tier, (void)holder, (void)bytes;
    return std::shared_ptr<void>();
  }
  // The holder's quota was in the way: something else of it in the tier's memory, that no session needs, has gone.
  // False: there is none.
  virtual bool GiveWay(std::string_view tier, const Holder& holder) {
    (void)tier, (void)holder;
    return false;
  }
  // How many shares of the tier the holder has. Who has most gives way first; those within theirs are equals, at 1.
  virtual double SharesHeld(std::string_view tier, const Holder& holder) const = 0;
};

}  // namespace gdn
