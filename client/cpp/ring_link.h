// The ring of one Client: opened by Client::OpenRing or by a first step, and opened again after it has ended.
//
// A call without an open ring, for example because its server has ended, tries to open one. If that fails, calls are
// messages, and a later call tries again. While a call opens a ring, the others are messages. A fork of the process has
// no ring: its calls are messages.
// Thread safety: all methods from any thread. Ownership: shares the ring with the calls that use it. What the opener
// uses must outlive this object.
//
//   GDN_ASSIGN_OR_RETURN(auto link, RingLink::Open(opener, absl::Seconds(60)));
//   if (const auto ring = link->ForCall(timeout); ring != nullptr) return ring->Call(request, timeout, response);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/ring_channel.h"

namespace gdn {

class RingLink {
 public:
  // Opens a ring within the timeout.
  using Opener = std::function<absl::StatusOr<std::unique_ptr<RingChannel>>(absl::Duration timeout)>;

  // Opens the first ring, within `timeout`. The opener's errors.
  static absl::StatusOr<std::unique_ptr<RingLink>> Open(Opener opener, absl::Duration timeout);
  // Has no ring yet: the first call opens it.
  explicit RingLink(Opener opener, std::shared_ptr<RingChannel> ring = nullptr);
  RingLink(const RingLink&) = delete;
  RingLink& operator=(const RingLink&) = delete;

  // True while calls go through a ring.
  bool open() const;
  // Returns the ring for a call; null: send a message. Opens a ring if there is none. That takes the shorter
  // of half of `timeout` and two seconds at most, and is taken from `timeout`.
  std::shared_ptr<RingChannel> ForCall(absl::Duration& timeout);

 private:
  const Opener opener_;
  const uint64_t
      owner_;  // gdn_process_mark: in a fork, another thread of the parent may have held mu_: nothing is locked there
  mutable absl::Mutex mu_;
  std::shared_ptr<RingChannel> ring_ ABSL_GUARDED_BY(mu_);  // null before the first
  bool opening_ ABSL_GUARDED_BY(mu_) = false;               // one call is opening a ring
  absl::Duration pause_ ABSL_GUARDED_BY(mu_);               // after the next failure to open
  absl::Time not_before_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace gdn
