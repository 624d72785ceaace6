// Counts operations under way, and lets one flow wait until all of them have ended.
//
// An operation ends by a call of End, on any thread, which may be before Begin has returned to whoever started it.
// Operations write their results before they call End.
// Thread safety: End from any thread; everything else from the flow that owns it. Ownership: lives in the frame of that
// flow, which must wait until no operation is open before the frame is destroyed.
//
//   Arrivals fetches;
//   for (Need& need : needs) {
//     fetches.Begin();
//     tiers.Fetch(need.key, [&](absl::StatusOr<Image> image) { need.image = std::move(image); fetches.End(); });
//   }
//   co_await fetches.All();
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "base/task/waiter.h"

namespace gdn {

class Arrivals {
 public:
  Arrivals() = default;
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  void Begin(int count = 1) {
    const std::lock_guard lock(mu_);
    open_ += count;
  }
  // Subtracts `count` operations that Begin has counted but that will never call End.
  void Withdraw(int count) {
    const std::lock_guard lock(mu_);
    open_ -= count;
  }
  // Ends one operation. The waiting flow, and with it this object, may be gone when End returns.
  void End() {
    Flow* resume = nullptr;
    {
      const std::lock_guard lock(mu_);
      if (--open_ > 0 || waiter_ == nullptr) return;
      resume = std::exchange(waiter_, nullptr)->Waiter::End(WaitEnd::kDone).resume;
    }
    if (resume != nullptr) resume->executor().Post(*resume);
  }

  class Awaiter final : public Waiter {
   public:
    Awaiter(Arrivals& of, Deadline deadline) : Waiter(std::move(deadline)), of_(of) {}
    absl::Status await_resume() { return StatusOf(Finish()); }

   private:
    bool Enlist() override {
      const std::lock_guard lock(of_.mu_);
      if (of_.open_ == 0) return false;
      of_.waiter_ = this;
      return true;
    }
    void Delist() override {
      const std::lock_guard lock(of_.mu_);
      of_.waiter_ = nullptr;
    }
    Arrivals& of_;
  };
  // Waits until no operation is open; OK at once if none is. DEADLINE_EXCEEDED, CANCELLED: some are still open, so wait
  // again, without a deadline, before this object goes.
  Awaiter All(Deadline deadline = {}) { return Awaiter(*this, std::move(deadline)); }

 private:
  std::mutex mu_;
  int open_ = 0;               // number of operations that have not ended; guarded by mu_
  Awaiter* waiter_ = nullptr;  // the one that waits; null: none; guarded by mu_
};

}  // namespace gdn
