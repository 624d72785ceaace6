// An event that any number of flows wait for: it happens once (a drain has ended), or again and again (room was made).
//
// A signal counts how often it was raised. A flow that reads the count, looks whether it can go on, and then waits for
// a count other than the one that it read cannot miss a raise in between.
// Thread safety: from any thread. Ownership: must outlive its waiters' waits and each call of Raise. For an event in
// the frame of the flow that waits for it, use Arrivals.
//
//   for (uint64_t seen = freed.count(); !TakeRoom(); seen = freed.count()) {
//     GDN_CO_RETURN_IF_ERROR(co_await freed.WaitBeyond(seen, deadline));
//   }
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "base/task/waiter.h"

namespace gdn {

class Signal {
 public:
  class Awaiter final : public Waiter {
   public:
    Awaiter(Signal& signal, uint64_t seen, Deadline deadline)
        : Waiter(std::move(deadline)), signal_(signal), seen_(seen) {}
    bool await_ready() override { return signal_.count() != seen_; }
    absl::Status await_resume() { return StatusOf(Finish()); }

   private:
    bool Enlist() override;
    void Delist() override;
    Signal& signal_;
    const uint64_t seen_;
  };

  Signal() = default;
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  // Resumes all waiting flows, each on its own executor, in the order in which they began to wait.
  void Raise();
  // Returns how often the signal was raised.
  uint64_t count() const { return count_.load(std::memory_order_acquire); }

  // Waits until the count differs from `seen`; does not wait if it does already. Returns OK then; DEADLINE_EXCEEDED or
  // CANCELLED if the deadline ends the wait first.
  Awaiter WaitBeyond(uint64_t seen, Deadline deadline = {}) { return Awaiter(*this, seen, std::move(deadline)); }
  // Waits until the signal has been raised at least once since it was made. Returns as WaitBeyond.
  Awaiter Wait(Deadline deadline = {}) { return WaitBeyond(0, std::move(deadline)); }

 private:
  std::atomic<uint64_t> count_{0};  // number of calls of Raise; incremented under mu_
  std::mutex mu_;
  WaitList waiters_;  // guarded by mu_
};

}  // namespace gdn
