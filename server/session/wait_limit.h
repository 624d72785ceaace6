// How long a call waits for its sessions: until its deadline, or until its client has gone.
//
// Thread safety: Check from any thread that `cancelled` may be called from. Ownership: a value; `cancelled` must be
// callable until the call is answered.
//
//   GDN_RETURN_IF_ERROR(limit.Check());
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "base/steady_clock.h"

namespace gdn {

struct WaitLimit {
  WaitLimit() = default;
  // A deadline alone is a limit, too.
  WaitLimit(SteadyTime until, std::function<bool()> gone = nullptr)  // NOLINT(google-explicit-constructor)
      : deadline(until), cancelled(std::move(gone)) {}

  SteadyTime deadline = SteadyTime::InfiniteFuture();
  std::function<bool()> cancelled;  // nullptr: never

  // DEADLINE_EXCEEDED, or CANCELLED (CALL_CANCELLED), of a call whose states were on their way.
  absl::Status Check() const;
};

}  // namespace gdn
