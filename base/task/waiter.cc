#include "base/task/waiter.h"

namespace gdn {

Waiter::Ending Waiter::End(WaitEnd how) {
  State state = state_.load(std::memory_order_acquire);
  while (state == State::kArming || state == State::kWaiting) {
    if (state_.compare_exchange_weak(state, static_cast<State>(how), std::memory_order_acq_rel)) {
      // If the waiter is still arming, its own thread continues and may destroy it from here on.
      return {.won = true, .resume = state == State::kWaiting ? flow_ : nullptr};
    }
  }
  return {};
}

bool Waiter::Suspend(Flow& flow, std::coroutine_handle<> waiting) {
  flow_ = &flow;
  executor_ = &flow.executor();
  flow.SuspendAt(waiting);
  state_.store(State::kArming, std::memory_order_relaxed);
  enlisted_ = Enlist();
  if (!enlisted_) {
    state_.store(State::kDone, std::memory_order_relaxed);
    return false;
  }
  if (deadline_.cancellation_ != nullptr && !deadline_.cancellation_->Add(cancel_node_)) End(WaitEnd::kCancelled);
  if (deadline_.time() != SteadyTime::InfiniteFuture()) {
    timer_.due = deadline_.time();
    timed_ = timer_.due > executor_->Now();
    if (timed_) {
      executor_->SetTimer(timer_);
    } else {
      End(WaitEnd::kLate);
    }
  }
  State armed = State::kArming;
  // After this succeeds the flow may run elsewhere: nothing of the waiter is touched here any more.
  if (state_.compare_exchange_strong(armed, State::kWaiting, std::memory_order_acq_rel)) return true;
  ended_while_arming_ = true;
  return false;
}

WaitEnd Waiter::Finish() {
  const auto end = static_cast<WaitEnd>(state_.load(std::memory_order_acquire));
  if (!enlisted_) return end;
  if (timed_) executor_->ClearTimer(timer_);
  if (deadline_.cancellation_ != nullptr) deadline_.cancellation_->Remove(cancel_node_);
  // A source that has ended the wait while it was being armed may still be inside its lock, which Delist waits for.
  if (end != WaitEnd::kDone || ended_while_arming_) Delist();
  return end;
}

absl::Status Waiter::StatusOf(WaitEnd end) {
  if (end == WaitEnd::kDone) return absl::OkStatus();
  return end == WaitEnd::kLate ? DeadlinePassed() : WaitCancelled();
}

}  // namespace gdn
