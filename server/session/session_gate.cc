#include "server/session/session_gate.h"

namespace gdn {

bool SessionGate::PinnableLocked() const {
  if (locked_) return false;
  // While held, a waiting lock does not keep pins out, because steps would then wait for the hold too.
  return held_ || lock_waiters_.empty();
}

void SessionGate::ServeLocked(FlowQueue& resumed) {
  while (LockableLocked() && !lock_waiters_.empty()) {
    WaitNode* const first = lock_waiters_.front();
    first->Unlink();
    const Waiter::Ending ending = first->waiter->End(WaitEnd::kDone);
    if (ending.won) locked_ = true;
    resumed.Push(ending.resume);
  }
  if (!PinnableLocked()) return;
  while (WaitNode* const node = pin_waiters_.front()) {
    node->Unlink();
    resumed.Push(node->waiter->End(WaitEnd::kDone).resume);
  }
}

bool SessionGate::Awaiter::Enlist() {
  absl::MutexLock lock(&gate_.mu_);
  if (what_ == For::kPin) {
    if (gate_.PinnableLocked()) return false;
    gate_.pin_waiters_.PushBack(node_);
    return true;
  }
  if (gate_.LockableLocked() && gate_.lock_waiters_.empty()) {
    gate_.locked_ = true;
    return false;
  }
  gate_.lock_waiters_.PushBack(node_);
  return true;
}

void SessionGate::Awaiter::Delist() {
  // Resume the pins that this waiter kept out.
  gate_.Change([this] { node_.Unlink(); });
}

bool SessionGate::TryPin() {
  absl::MutexLock lock(&mu_);
  return TryPinLocked();
}

bool SessionGate::TryPinLocked() {
  if (!PinnableLocked()) return false;
  ++pins_;
  return true;
}

void SessionGate::PinAgain() {
  absl::MutexLock lock(&mu_);
  PinAgainLocked();
}

void SessionGate::Change(absl::FunctionRef<void()> change) {
  FlowQueue resumed;
  {
    absl::MutexLock lock(&mu_);
    change();
    ServeLocked(resumed);
  }
  resumed.PostAll();
}

void SessionGate::Unpin() {
  Change([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { --pins_; });
}

bool SessionGate::TryLock() {
  absl::MutexLock lock(&mu_);
  if (!LockableLocked() || !lock_waiters_.empty()) return false;
  locked_ = true;
  return true;
}

void SessionGate::Unlock() {
  Change([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { locked_ = false; });
}

void SessionGate::LockToPin() {
  Change([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    locked_ = false;
    ++pins_;
  });
}

void SessionGate::Hold() {
  Change([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    locked_ = false;
    held_ = true;
  });
}

void SessionGate::ReleaseHold() {
  Change([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { held_ = false; });
}

bool SessionGate::held() const {
  absl::MutexLock lock(&mu_);
  return held_;
}

int32_t SessionGate::pins() const {
  absl::MutexLock lock(&mu_);
  return pins_;
}

}  // namespace gdn
