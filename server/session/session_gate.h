// Coordinates the use of a session's states: steps pin them, moves and copies lock them.
//
//   pinned  by any number of calls: the states stay where steps can reach them
//   locked  by one holder: nobody steps; waits for the pins to go, and later pins wait for it
//   held    by one holder, after a lock: steps go on, no lock is granted (a copy of the states is being written)
// Thread safety: safe from any thread. The mutex is the session's, so that a session's fields and its pins and locks
// can be checked together. Methods with Locked in their names need the mutex. Waiting flows continue on their own
// executors, outside the mutex.
// Ownership: the mutex must outlive the gate, and the gate must outlive its users and their waits.
//
//   SessionGate gate(mu);
//   if (gate.TryPin()) { ...step...; gate.Unpin(); }
//   GDN_CO_RETURN_IF_ERROR(co_await gate.Lock(deadline));
//   ...
//   gate.Unlock();
#pragma once

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/task/deadline.h"
#include "base/task/executor.h"
#include "base/task/wait_list.h"
#include "base/task/waiter.h"

namespace gdn {

class SessionGate {
 public:
  class Awaiter : public Waiter {
   public:
    absl::Status await_resume() { return StatusOf(Finish()); }

   protected:
    enum class For : uint8_t { kPin, kLock };
    Awaiter(SessionGate& gate, For what, Deadline deadline) : Waiter(std::move(deadline)), gate_(gate), what_(what) {}
    ~Awaiter() = default;

   private:
    bool Enlist() override;
    void Delist() override;
    SessionGate& gate_;
    const For what_;
  };
  class PinAwaiter final : public Awaiter {
   public:
    PinAwaiter(SessionGate& gate, Deadline deadline) : Awaiter(gate, For::kPin, std::move(deadline)) {}
  };
  class LockAwaiter final : public Awaiter {
   public:
    LockAwaiter(SessionGate& gate, Deadline deadline) : Awaiter(gate, For::kLock, std::move(deadline)) {}
  };

  explicit SessionGate(absl::Mutex& mu) : mu_(mu) {}

  // Pins, until Unpin. False if the gate is locked, or if a lock waits and the gate is not held.
  bool TryPin();
  bool TryPinLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds a pin for a caller that has one already; always possible.
  void PinAgain();
  void PinAgainLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++pins_; }
  void Unpin();
  // Waits until a pin is possible, and does not pin. The caller must then try again, because another may have locked
  // meanwhile. DEADLINE_EXCEEDED, CANCELLED.
  PinAwaiter Pinnable(Deadline deadline = {}) { return PinAwaiter(*this, std::move(deadline)); }

  // Locks, until Unlock, LockToPin or Hold. False if the gate is pinned, locked or held, or if somebody waits for the
  // lock.
  bool TryLock();
  // Waits for the lock, in the order of the calls. After OK the caller has the lock. DEADLINE_EXCEEDED, CANCELLED.
  LockAwaiter Lock(Deadline deadline = {}) { return LockAwaiter(*this, std::move(deadline)); }
  void Unlock();
  // Turns the caller's lock into one pin, without a moment when somebody else can lock.
  void LockToPin();
  // Hold turns the caller's lock into a hold: pins are possible, locks are not. ReleaseHold ends the hold.
  void Hold();
  void ReleaseHold();

  bool PinnableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int32_t pins() const;
  bool held() const;

 private:
  // Makes the change under the mutex, then resumes the waiters that it admits.
  void Change(absl::FunctionRef<void()> change);
  void ServeLocked(FlowQueue& resumed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool LockableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !locked_ && !held_ && pins_ == 0; }

  absl::Mutex& mu_;
  int32_t pins_ ABSL_GUARDED_BY(mu_) = 0;
  bool locked_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  WaitList lock_waiters_ ABSL_GUARDED_BY(mu_);
  WaitList pin_waiters_ ABSL_GUARDED_BY(mu_);  // invariant: empty while a pin is possible
};

}  // namespace gdn
