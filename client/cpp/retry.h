// When a call to a server that may restart is worth another try, and how long to wait before it.
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

// True where the server was away, is about to be, or was in the way of itself: no connection, a connection that broke,
// UNAVAILABLE and DEADLINE_EXCEEDED of any reason, SESSION_BUSY, RESOURCE_EXHAUSTED that waiting helps. False for what
// the same request will meet again.
bool WorthAnotherTry(const absl::Status& status);

// True where the session is not where the caller left it: EPOCH_MISMATCH, TOKEN_COUNT_MISMATCH, SESSION_NOT_FOUND, a
// draft that the caller does not know of; REPLY_DROPPED, where it is behind a step that the caller has no answer to;
// STATE_ROLLED_BACK, where it has to go on from an older state, or from none; STATE_LOST, where none is left.
bool SessionHasMoved(const absl::Status& status);

// The error of a call whose time is over: that of its last try, with a note. If that error only says that the session
// has moved, DEADLINE_EXCEEDED with its words: the same call again brings the session back and goes on.
absl::Status TimeIsOver(const absl::Status& last);

class Backoff {
 public:
  struct Options {
    absl::Duration first = absl::Milliseconds(50);
    absl::Duration longest = absl::Seconds(2);
    absl::Time deadline = absl::InfiniteFuture();
  };
  explicit Backoff(const Options& options) : options_(options), next_(options.first) {}

  // Sleeps: twice as long as the last time, less a random part of at most a half, and no less than the server asks for.
  // Returns TimeIsOver(cause) at once if the deadline would pass meanwhile.
  absl::Status Wait(const absl::Status& cause);

  absl::Time deadline() const { return options_.deadline; }

 private:
  const Options options_;
  absl::Duration next_;
  absl::InsecureBitGen random_;
};

}  // namespace gdn
