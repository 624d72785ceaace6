#include "server/session/room/session_holders.h"

#include <algorithm>

#include "base/status_macros.h"

namespace gdn {

BytePool PoolOfTier(std::string_view tier) {
  if (tier == "host") return BytePool::kHost;
  return tier == "disk" ? BytePool::kDisk : BytePool::kRedis;
}

void SessionHolders::Set(const StateKey& session, const ByteAccountPtr& account) {
  absl::MutexLock lock(&mu_);
  accounts_[{session.principal, session.id}] = account;
}

void SessionHolders::Forget(const StateKey& session) {
  decltype(accounts_)::node_type forgotten;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  forgotten = accounts_.extract({session.principal, session.id});
}

TierHolders::Holder SessionHolders::HolderOf(const StateKey& key) {
  absl::MutexLock lock(&mu_);
  const auto it = accounts_.find({key.principal, key.id});
  return it == accounts_.end() ? ledger_.AccountOf(key.principal, /*peer=*/"") : it->second;
}

std::shared_ptr<void> SessionHolders::Charge(std::string_view tier, const StateKey& key, const Holder& holder,
                                             int64_t bytes) {
  struct Charges {
    ByteCharge there, state, count;
  };
  const auto account = std::static_pointer_cast<ByteAccount>(holder);
  auto charges = std::make_shared<Charges>();
  charges->there = ledger_.Charge(PoolOfTier(tier), account, bytes);
  if (!key.checkpoint.empty()) {
    charges->state = ledger_.Charge(BytePool::kStates, account, bytes);
    charges->count = ledger_.Charge(BytePool::kCheckpoints, account, 1);
  }
  return charges;
}

absl::StatusOr<std::shared_ptr<void>> SessionHolders::TryCharge(std::string_view tier, const Holder& holder,
                                                                int64_t bytes) {
  GDN_ASSIGN_OR_RETURN(ByteCharge charge, ledger_.ChargeWithinQuota(
                                              PoolOfTier(tier), std::static_pointer_cast<ByteAccount>(holder), bytes));
  return std::make_shared<ByteCharge>(std::move(charge));
}

bool SessionHolders::GiveWay(std::string_view tier, const Holder& holder) {
  return tier == "host" && give_way_ && give_way_(*static_cast<const ByteAccount*>(holder.get()));
}

double SessionHolders::SharesHeld(std::string_view tier, const Holder& holder) const {
  return std::max(1.0, ledger_.SharesHeld(PoolOfTier(tier), *static_cast<const ByteAccount*>(holder.get())));
}

}  // namespace gdn
