// Waits for a time.
//
// Thread safety: belongs to one flow.
//
//   GDN_CO_RETURN_IF_ERROR(co_await SleepUntil(executor.Now() + absl::Milliseconds(200), deadline));
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "base/task/waiter.h"
#include "base/threads/steady_clock.h"

namespace gdn {

// Waits until `time`, and returns OK; returns at once if `time` has passed. DEADLINE_EXCEEDED at the deadline's time if
// that is earlier; CANCELLED at once if the deadline is or becomes cancelled.
class [[nodiscard]] SleepUntil final : public Waiter {
 public:
  explicit SleepUntil(SteadyTime time, const Deadline& deadline = {})
      : Waiter(deadline.NotAfter(time)), slept_(time <= deadline.time()) {}
  absl::Status await_resume() {
    const WaitEnd end = Finish();
    return end == WaitEnd::kLate && slept_ ? absl::OkStatus() : StatusOf(end);
  }

 private:
  bool Enlist() override { return true; }
  void Delist() override {}
  const bool slept_;
};

}  // namespace gdn
