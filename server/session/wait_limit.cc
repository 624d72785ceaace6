#include "server/session/wait_limit.h"

#include "base/error.h"

namespace gdn {

absl::Status WaitLimit::Check() const {
  if (SteadyNow() >= deadline) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded,
                     "the deadline passed while the call waited for its sessions' states; they have not moved");
  }
  if (cancelled && cancelled()) {
    return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled,
                     "the client has gone while the call waited for its sessions' states; they have not moved");
  }
  return absl::OkStatus();
}

}  // namespace gdn
