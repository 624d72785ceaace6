#include "base/task/deadline.h"

#include "base/error.h"
#include "base/task/executor.h"
#include "base/task/frame_pool.h"
#include "base/task/waiter.h"

namespace gdn {

void Cancellation::Cancel() {
  FlowQueue resumed;
  {
    const std::lock_guard lock(mu_);
    cancelled_.store(true, std::memory_order_release);
    while (WaitNode* node = waiters_.front()) {
      node->Unlink();
      resumed.Push(node->waiter->End(WaitEnd::kCancelled).resume);
    }
  }
  resumed.PostAll();
}

bool Cancellation::Add(WaitNode& node) {
  const std::lock_guard lock(mu_);
  if (cancelled()) return false;
  waiters_.PushBack(node);
  return true;
}

void Cancellation::Remove(WaitNode& node) {
  const std::lock_guard lock(mu_);
  node.Unlink();
}

absl::Status Deadline::Check(SteadyTime now) const {
  if (cancelled()) return WaitCancelled();
  return now >= time_ ? DeadlinePassed() : absl::OkStatus();
}

CancelSource::CancelSource() : cancellation_(std::allocate_shared<Cancellation>(FrameAllocator<Cancellation>())) {}

absl::Status DeadlinePassed() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded,
                   "the deadline passed before what the call waited for was there");
}

absl::Status WaitCancelled() {
  return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled,
                   "the call was cancelled before what it waited for was there");
}

}  // namespace gdn
