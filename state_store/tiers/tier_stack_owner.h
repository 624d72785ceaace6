// Ownership of a session within a TierStack, for a scope. An implementation detail of tier_stack*.cc.
//
// Thread safety: for one thread. Ownership: borrows the stack and the key.
//
//   TierStack::Owner owner(*this, key);  // waits for a move of the session to end
#pragma once

#include "state_store/tiers/tier_stack.h"

namespace gdn {

class TierStack::Owner {
 public:
  struct Acquired {};
  static constexpr Acquired kAcquired{};

  Owner(TierStack& stack, const StateKey& key) : stack_(stack), key_(key) { stack_.Acquire(key_); }
  // Of a session that TryAcquire gave.
  Owner(TierStack& stack, const StateKey& key, Acquired) : stack_(stack), key_(key) {}
  ~Owner() { stack_.Relinquish(key_); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

 private:
  TierStack& stack_;
  const StateKey& key_;
};

}  // namespace gdn
