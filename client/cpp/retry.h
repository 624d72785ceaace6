// Decides whether a call to a server that may restart should be retried, and how long to wait before that.
//
// Thread safety: a Backoff is for one thread. Ownership: plain values.
//
//   Backoff backoff({.deadline = absl::Now() + absl::Minutes(5)});
//   for (absl::Status status = Try(); !status.ok(); status = Try()) {
//     if (!WorthAnotherTry(status)) return status;
//     GDN_RETURN_IF_ERROR(backoff.Wait(status));
//   }
#pragma once

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gdn {

// True if a retry may succeed: UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED for any reason; UNKNOWN or INTERNAL without
// a reason (a connection broke); ABORTED (SESSION_BUSY); RESOURCE_EXHAUSTED with a retry delay. False for OK, and if
// the same request would fail again in the same way.
bool WorthAnotherTry(const absl::Status& status);

// True if the session is not where the caller left it. Reasons: EPOCH_MISMATCH, TOKEN_COUNT_MISMATCH,
// SESSION_NOT_FOUND, or a draft that the caller does not know. REPLY_DROPPED: a step was applied whose reply the caller
// lacks. STATE_ROLLED_BACK: only an older state, or none, is left. STATE_LOST: no state is left.
bool SessionHasMoved(const absl::Status& status);

// Returns the error of a call whose time has passed: the error of its last try, with a note. An error that only says
// that the session has moved becomes DEADLINE_EXCEEDED with the same text: repeat the call to recover the session and
// continue.
absl::Status TimeIsOver(const absl::Status& last);

class Backoff {
 public:
  struct Options {
    absl::Duration first = absl::Milliseconds(50);
    absl::Duration longest = absl::Seconds(2);
    absl::Time deadline = absl::InfiniteFuture();
  };
  explicit Backoff(const Options& options) : options_(options), next_(options.first) {}

  // Blocks: sleeps for options.first, and each time twice as long as the last (at most `longest`), less a random part
  // of up to one half. Sleeps at least as long as the server asks in `cause`, up to `longest`. Returns OK after the
  // sleep, or TimeIsOver(cause) at once if the deadline would pass during it.
  absl::Status Wait(const absl::Status& cause);

  absl::Time deadline() const { return options_.deadline; }

 private:
  const Options options_;
  absl::Duration next_;
  absl::InsecureBitGen random_;
};

}  // namespace gdn
