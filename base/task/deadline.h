// The end of a wait: a time, and a cancellation that may come before it.
//
// A Deadline is handed down with a call. Whoever waits passes it to the wait, which ends with DEADLINE_EXCEEDED or
// CANCELLED; nobody else needs to look at it.
// Thread safety: a Deadline is a value; CancelSource::Cancel comes from any thread. Ownership: deadlines may outlive
// their source, and are then never cancelled.
//
//   CancelSource client_gone;
//   const Deadline deadline = client_gone.Until(clock.Now() + absl::Seconds(5));
//   GDN_CO_RETURN_IF_ERROR(co_await arrived.Wait(deadline));
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "base/task/wait_list.h"
#include "base/threads/steady_clock.h"

namespace gdn {

// State shared by a CancelSource and its Deadlines.
class Cancellation {
 public:
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  void Cancel();
  // For Waiter. Add lists the node of a waiter whose wait Cancel is to end. It returns false, and lists nothing, if
  // Cancel was called already. After Remove has returned, this object does not touch the node.
  bool Add(WaitNode& node);
  void Remove(WaitNode& node);

 private:
  std::atomic<bool> cancelled_{false};  // written under mu_
  std::mutex mu_;
  WaitList waiters_;  // guarded by mu_
};

class Deadline {
 public:
  Deadline() = default;  // no time and no cancellation: never ends a wait
  // A deadline without a cancellation.
  Deadline(SteadyTime time) : time_(time) {}  // NOLINT(google-explicit-constructor)

  SteadyTime time() const { return time_; }
  bool cancelled() const { return cancellation_ != nullptr && cancellation_->cancelled(); }
  // Returns a deadline with the same cancellation and the earlier of both times.
  Deadline NotAfter(SteadyTime time) const { return Deadline(std::min(time_, time), cancellation_); }
  // Returns a deadline with the same cancellation and no time.
  Deadline WithoutTime() const { return Deadline(SteadyTime::InfiniteFuture(), cancellation_); }
  // Returns CANCELLED (CALL_CANCELLED) if cancelled, else DEADLINE_EXCEEDED (DEADLINE_EXCEEDED) if `now` is the
  // deadline's time or later, else OK.
  absl::Status Check(SteadyTime now) const;

 private:
  friend class CancelSource;
  friend class Waiter;
  Deadline(SteadyTime time, std::shared_ptr<Cancellation> cancellation)
      : time_(time), cancellation_(std::move(cancellation)) {}

  SteadyTime time_ = SteadyTime::InfiniteFuture();
  std::shared_ptr<Cancellation> cancellation_;  // null: none
};

class CancelSource {
 public:
  CancelSource();

  // Ends all waits under this source's deadlines with CANCELLED, now and later. The waiting flows continue on their
  // executors, not within this call.
  void Cancel() { cancellation_->Cancel(); }
  bool cancelled() const { return cancellation_->cancelled(); }
  Deadline Until(SteadyTime time) const { return Deadline(time, cancellation_); }
  Deadline Never() const { return Until(SteadyTime::InfiniteFuture()); }

 private:
  std::shared_ptr<Cancellation> cancellation_;
};

// The errors that waits and Deadline::Check return: DEADLINE_EXCEEDED (DEADLINE_EXCEEDED) and CANCELLED
// (CALL_CANCELLED).
absl::Status DeadlinePassed();
absl::Status WaitCancelled();

}  // namespace gdn
