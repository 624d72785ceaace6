#include "tests/base/task/semaphore.h"

#include "absl/status/status.h"
#include "base/string_cat.h"

namespace gdn {

bool Semaphore::TryTakeLocked(int64_t units) {
  if (!waiters_.empty() || units > free_) return false;
  free_ -= units;
  return true;
}

bool Semaphore::TryTake(int64_t units, Permit* permit) {
  const std::lock_guard lock(mu_);
  if (!TryTakeLocked(units)) return false;
  *permit = Permit(this, units);
  return true;
}

int64_t Semaphore::free() const {
  const std::lock_guard lock(mu_);
  return free_;
}

void Semaphore::ServeLocked(FlowQueue& resumed) {
  while (WaitNode* node = waiters_.front()) {
    const int64_t units = static_cast<Awaiter*>(node->waiter)->units_;
    if (units > free_) return;
    node->Unlink();
    const Waiter::Ending ending = node->waiter->End(WaitEnd::kDone);
    if (ending.won) free_ -= units;
    resumed.Push(ending.resume);
  }
}

void Semaphore::Permit::GiveBack() {
  if (of_ == nullptr) return;
  FlowQueue resumed;
  {
    const std::lock_guard lock(of_->mu_);
    of_->free_ += std::exchange(units_, 0);
    of_->ServeLocked(resumed);
  }
  of_ = nullptr;
  resumed.PostAll();
}

bool Semaphore::Awaiter::Enlist() {
  const std::lock_guard lock(of_.mu_);
  if (units_ > of_.units_ || of_.TryTakeLocked(units_)) return false;
  of_.waiters_.PushBack(node_);
  return true;
}

void Semaphore::Awaiter::Delist() {
  FlowQueue resumed;
  {
    const std::lock_guard lock(of_.mu_);
    node_.Unlink();
    of_.ServeLocked(resumed);  // it may have been in the way of smaller ones
  }
  resumed.PostAll();
}

absl::StatusOr<Semaphore::Permit> Semaphore::Awaiter::await_resume() {
  const WaitEnd end = Finish();
  if (end != WaitEnd::kDone) return StatusOf(end);
  if (units_ > of_.units_) {
    return absl::ResourceExhaustedError(StrCat(units_, " units were asked for, and there are ", of_.units_, " in all"));
  }
  return Permit(&of_, units_);
}

}  // namespace gdn
