#include "client/cpp/retry.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/time/clock.h"
#include "base/error.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"

namespace gdn {

bool WorthAnotherTry(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:  // by a server that stops: nobody else can cancel these calls
      return true;
    case absl::StatusCode::kAborted:
      return reason == reason::kSessionBusy;
    case absl::StatusCode::kResourceExhausted:
      return RetryDelay(status).has_value();
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return reason.empty();  // gRPC's own words for a connection that broke in the middle of a call
    default:
      return false;
  }
}

bool SessionHasMoved(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  switch (status.code()) {
    case absl::StatusCode::kAborted:
      return reason == reason::kEpochMismatch || reason == reason::kTokenCountMismatch ||
             reason == reason::kReplyDropped;
    case absl::StatusCode::kNotFound:
      return reason == reason::kSessionNotFound;
    case absl::StatusCode::kFailedPrecondition:
      return reason == reason::kDraftPending;
    case absl::StatusCode::kDataLoss:
      return reason == reason::kStateRolledBack || reason == reason::kStateLost;
    default:
      return false;
  }
}

absl::Status TimeIsOver(const absl::Status& last) {
  const std::string text = StrCat(last.message(), " (the last try: the time for this call is over)");
  if (SessionHasMoved(last)) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded,
                     StrCat("the session has to be brought back, which the same call again goes on with: ", text));
  }
  absl::Status over(last.code(), AbslView(text));
  last.ForEachPayload([&over](absl::string_view url, const absl::Cord& payload) { over.SetPayload(url, payload); });
  return over;
}

absl::Status Backoff::Wait(const absl::Status& cause) {
  absl::Duration delay = next_ * absl::Uniform(random_, 0.5, 1.0);
  if (const auto asked = RetryDelay(cause); asked.has_value())
    delay = std::max(delay, std::min(*asked, options_.longest));
  next_ = std::min(2 * next_, options_.longest);
  if (absl::Now() + delay < options_.deadline) {
    absl::SleepFor(delay);
    return absl::OkStatus();
  }
  return TimeIsOver(cause);
}

}  // namespace gdn
