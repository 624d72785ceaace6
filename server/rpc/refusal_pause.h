// A pause before a call hears that there was no memory for it, or that its quota is used up.
//
// gRPC hands a message over whole, so a refusal costs the server the message's way through the transport. A client that
// sends again at once would keep it busy with what it refuses, and others wait for the processors; one that keeps to
// RetryInfo loses nothing. What waits holds its reactor and no message, and only so many do: more are answered at once.
// Thread safety: safe from any thread. Ownership: must outlive the pauses.
//
//   if (RefusalPauses::Pauses(status)) Start(pauses.Answer(status, gone));  // ends with the status, a little later
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/steady_clock.h"
#include "base/task/deadline.h"
#include "base/task/sleep.h"
#include "base/task/task.h"

namespace gdn {

class RefusalPauses {
 public:
  // Half of what RetryInfo says.
  static constexpr absl::Duration kPause = absl::Milliseconds(50);
  static constexpr int kMostWaiting = 1024;

  static bool Pauses(const absl::Status& status) {
    if (!absl::IsResourceExhausted(status)) return false;
    const std::string reason = ErrorReason(status);
    return reason == reason::kBytesExhausted || reason == reason::kQuotaExceeded;
  }

  // `refusal`, after the pause; at once if many wait, or the client has gone.
  Task<absl::Status> Answer(absl::Status refusal, Deadline gone) {
    if (waiting_.fetch_add(1) < kMostWaiting) (co_await SleepUntil(SteadyNow() + kPause, gone)).IgnoreError();
    waiting_.fetch_sub(1);
    co_return refusal;
  }

 private:
  std::atomic<int> waiting_{0};
};

}  // namespace gdn
