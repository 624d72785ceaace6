// A pause before a call hears that there was no memory for it, or that its quota is used up.
//
// gRPC hands a message over whole, so a refusal costs the server the message's way through the transport. A client that
// sends again at once would keep it busy with what it refuses, and others wait for the processors; one that keeps to
// RetryInfo loses nothing. What waits holds its reactor and no message, and only so many do: more are answered at once.
// Thread safety: safe from any thread. Ownership: must outlive the answers that wait; an Answer is its call's.
//
//   RefusalPauses::Answer later;
//   pauses.After(later, [this] { Reply(status); });
#pragma once

#include <grpcpp/alarm.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error.h"

namespace gdn {

class RefusalPauses {
 public:
  // Half of what RetryInfo says.
  static constexpr absl::Duration kPause = absl::Milliseconds(50);
  static constexpr int kMostWaiting = 1024;

  using Answer = std::optional<grpc::Alarm>;

  static bool Pauses(const absl::Status& status) {
    if (!absl::IsResourceExhausted(status)) return false;
    const std::string reason = ErrorReason(status);
    return reason == reason::kBytesExhausted || reason == reason::kQuotaExceeded;
  }

  // Calls `answer` once: from another thread after the pause, or at once where many wait. `later` may go in it.
  void After(Answer& later, std::function<void()> answer) {
    if (waiting_.fetch_add(1) >= kMostWaiting) {
      waiting_.fetch_sub(1);
      return answer();
    }
    later.emplace().Set(absl::ToChronoTime(absl::Now() + kPause), [this, answer = std::move(answer)](bool /*ok*/) {
      waiting_.fetch_sub(1);
      answer();
    });
  }

 private:
  std::atomic<int> waiting_{0};
};

}  // namespace gdn
