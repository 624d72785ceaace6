// Knows the account that each session's states in the tiers are charged to (BytePool kHost, kDisk, kRedis; named
// checkpoints in kStates and kCheckpoints too).
//
// Thread safety: safe from any thread. Ownership: the ledger must outlive it.
//
//   SessionHolders holders(ledger);
//   holders.Set(session->key(), session->account());  // otherwise: the principal's account without an address
//   TierStack stack({&host, &disk}, {.holders = &holders});
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/admission/byte_ledger.h"
#include "state_store/tiers/tier_holders.h"

namespace gdn {

// Returns the pool for states in the tier of that name: "host", "disk" or "redis".
BytePool PoolOfTier(std::string_view tier);

class SessionHolders final : public TierHolders {
 public:
  explicit SessionHolders(ByteLedger& ledger) : ledger_(ledger) {}

  // Records the account that the session's states are charged to.
  void Set(const StateKey& session, const ByteAccountPtr& account);
  // Forgets the session's account. Call it when the session has ended. Charges for its states stay until the states are
  // gone.
  void Forget(const StateKey& session);

  Holder HolderOf(const StateKey& key) override;
  std::shared_ptr<void> Charge(std::string_view tier, const StateKey& key, const Holder& holder,
                               int64_t bytes) override;
  // Charges `bytes` to the account of `holder`. The result gives the charge back when it is destroyed. Errors of the
  // tier's quota: RESOURCE_EXHAUSTED (QUOTA_EXCEEDED).
  absl::StatusOr<std::shared_ptr<void>> TryCharge(std::string_view tier, const Holder& holder, int64_t bytes) override;
  bool GiveWay(std::string_view tier, const Holder& holder) override;
  double SharesHeld(std::string_view tier, const Holder& holder) const override;
  // Sets the function that GiveWay calls for the host tier. It frees host memory of the account that no session uses
  // (stored prefixes), and returns false if there is none. Call before the first session.
  void SetGiveWay(std::function<bool(const ByteAccount&)> give_way) { give_way_ = std::move(give_way); }

 private:
  using Name = std::pair<std::string, std::string>;  // principal, id
  ByteLedger& ledger_;
  std::function<bool(const ByteAccount&)> give_way_;
  absl::Mutex mu_;
  std::map<Name, ByteAccountPtr> accounts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
