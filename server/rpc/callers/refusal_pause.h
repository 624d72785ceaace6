// Delays the refusal of a step that found no memory, or whose caller has used up its quota.
//
// gRPC delivers whole messages, so a refused call still costs the server the transport of its message. Without the
// delay, a client that retries at once could keep the server's processors busy with refused messages. A client that
// waits as RetryInfo says loses nothing. A delayed call keeps its reactor but not its tensors, and at most kMostWaiting
// calls are delayed; others are answered at once.
// Thread safety: safe from any thread. Ownership: must outlive the pauses.
//
//   if (RefusalPauses::Pauses(status)) Start(pauses.Answer(status, gone));  // ends with the status, a little later
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/task/deadline.h"
#include "base/task/sleep.h"
#include "base/task/task.h"
#include "base/threads/steady_clock.h"

namespace gdn {

class RefusalPauses {
 public:
  // Time that a refusal waits before it is sent: half of the delay in RetryInfo (100 ms).
  static constexpr absl::Duration kPause = absl::Milliseconds(50);
  static constexpr int kMostWaiting = 1024;

  static bool Pauses(const absl::Status& status) {
    if (!absl::IsResourceExhausted(status)) return false;
    const std::string reason = ErrorReason(status);
    return reason == reason::kBytesExhausted || reason == reason::kQuotaExceeded;
  }

  // Returns `refusal` after kPause. Returns it at once if kMostWaiting calls are delayed, and earlier if `gone` is
  // cancelled because the client has gone.
  Task<absl::Status> Answer(absl::Status refusal, Deadline gone) {
    if (waiting_.fetch_add(1) < kMostWaiting) (co_await SleepUntil(SteadyNow() + kPause, gone)).IgnoreError();
    waiting_.fetch_sub(1);
    co_return refusal;
  }

 private:
  std::atomic<int> waiting_{0};
};

}  // namespace gdn
