#include "base/task/signal.h"

namespace gdn {

void Signal::Raise() {
  FlowQueue resumed;
  {
    const std::lock_guard lock(mu_);
    count_.fetch_add(1, std::memory_order_release);
    while (WaitNode* node = waiters_.front()) {
      node->Unlink();
      resumed.Push(node->waiter->End(WaitEnd::kDone).resume);
    }
  }
  resumed.PostAll();
}

bool Signal::Awaiter::Enlist() {
  const std::lock_guard lock(signal_.mu_);
  if (signal_.count() != seen_) return false;
  signal_.waiters_.PushBack(node_);
  return true;
}

void Signal::Awaiter::Delist() {
  const std::lock_guard lock(signal_.mu_);
  node_.Unlink();
}

}  // namespace gdn
