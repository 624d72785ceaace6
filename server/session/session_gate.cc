#include "server/session/session_gate.h"

#include <utility>

namespace gdn {
bool SessionGate::PinnableLocked() const {
  if (locked_) return false;
  return held_ || lock_waiters_.empty();  // a lock that waits for a hold to end would only make steps wait with it
}

std::vector<SessionGate::Callback> SessionGate::TakeRunnableLocked() {
  std::vector<Callback> runnable;
  if (!locked_ && !held_ && pins_ == 0 && !lock_waiters_.empty()) {
    locked_ = true;
    runnable.push_back(std::move(lock_waiters_.front()));
    lock_waiters_.pop_front();
  } else if (PinnableLocked()) {
    runnable.swap(pin_waiters_);
  }
  return runnable;
}

bool SessionGate::TryPin() {
  absl::MutexLock lock(&mu_);
  if (!PinnableLocked()) return false;
  ++pins_;
  return true;
}

void SessionGate::PinAgain() {
  absl::MutexLock lock(&mu_);
  ++pins_;
}

void SessionGate::Change(absl::FunctionRef<void()> change) {
  std::vector<Callback> runnable;
  {
    absl::MutexLock lock(&mu_);
    change();
    runnable = TakeRunnableLocked();
  }
  for (const Callback& callback : runnable) callback();
}

void SessionGate::Unpin() {
  Change([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { --pins_; });
}

void SessionGate::WhenPinnable(Callback retry) {
  {
    absl::MutexLock lock(&mu_);
    if (!PinnableLocked()) {
      pin_waiters_.push_back(std::move(retry));
      return;
    }
  }
  retry();
}

bool SessionGate::TryLock() {
  absl::MutexLock lock(&mu_);
  if (locked_ || held_ || pins_ > 0 || !lock_waiters_.empty()) return false;
  locked_ = true;
  return true;
}

void SessionGate::Lock(Callback granted) {
  Change([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { lock_waiters_.push_back(std::move(granted)); });
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
