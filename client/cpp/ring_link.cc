#include "client/cpp/ring_link.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "ring/process_mark.h"

namespace gdn {
namespace {

constexpr absl::Duration kMostWait = absl::Seconds(2);          // of a call, for the server to give a ring
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);  // a server that restarts is soon back
constexpr absl::Duration kLongestPause = absl::Seconds(5);      // a server that gives no ring costs a call this often

}  // namespace

absl::StatusOr<std::unique_ptr<RingLink>> RingLink::Open(Opener opener, absl::Duration timeout) {
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<RingChannel> ring, opener(timeout));
  return std::make_unique<RingLink>(std::move(opener), std::move(ring));
}

RingLink::RingLink(Opener opener, std::shared_ptr<RingChannel> ring)
    : opener_(std::move(opener)), owner_(gdn_process_mark()), ring_(std::move(ring)), pause_(kFirstPause) {}

bool RingLink::open() const {
  if (gdn_process_mark() != owner_) return false;
  absl::MutexLock lock(&mu_);
  return ring_ != nullptr && ring_->open();
}

std::shared_ptr<RingChannel> RingLink::ForCall(absl::Duration& timeout) {
  if (gdn_process_mark() != owner_) return nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (ring_ != nullptr && ring_->open()) return ring_;
    if (opening_ || absl::Now() < not_before_) return nullptr;
    opening_ = true;
  }
  const absl::Time begun = absl::Now();
  absl::StatusOr<std::unique_ptr<RingChannel>> opened = opener_(std::min(timeout / 2, kMostWait));
  timeout = std::max(timeout - (absl::Now() - begun), absl::Microseconds(1));
  std::shared_ptr<RingChannel> old;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  opening_ = false;
  if (!opened.ok()) {
    not_before_ = absl::Now() + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    return nullptr;
  }
  pause_ = kFirstPause;
  old = std::exchange(ring_, *std::move(opened));
  return ring_;
}

}  // namespace gdn
