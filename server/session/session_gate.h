// Who may do what with a session's states: steps pin them, moves and copies lock them.
//
//   pinned  by any number of calls: the states stay where steps can reach them
//   locked  by one holder: nobody steps; waits for the pins to go, and later pins wait for it
//   held    by one holder, after a lock: steps go on, no lock is granted (a copy of the states is being written)
// Thread safety: safe from any thread; callbacks come from the thread that made them possible, outside any lock of the
// gate. Ownership: the gate must outlive its users.
//
//   if (gate.TryPin()) { ...step...; gate.Unpin(); }
//   gate.Lock([&] { ...; gate.Unlock(); });
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

class SessionGate {
 public:
  using Callback = std::function<void()>;

  // False where it is locked, or a lock waits for the pins to go.
  bool TryPin();
  // For a caller that has a pin already; never waits for anybody.
  void PinAgain();
  void Unpin();
  // Calls `retry` once, when a pin may be had; at once where it may be had now.
  void WhenPinnable(Callback retry);

  // False where it is pinned, locked, held, or somebody waits for a lock.
  bool TryLock();
  // Calls `granted`, in the order of the calls; at once where nothing is in the way.
  void Lock(Callback granted);
  void Unlock();
  // From locked to pinned, once.
  void LockToPin();
  // From locked to held, and from held to free.
  void Hold();
  void ReleaseHold();

  int32_t pins() const;
  bool held() const;

 private:
  // Makes the change, and calls what became possible by it, without the mutex.
  void Change(absl::FunctionRef<void()> change);
  // While pins are to be had, nobody waits for one.
  std::vector<Callback> TakeRunnableLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool PinnableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  int32_t pins_ ABSL_GUARDED_BY(mu_) = 0;
  bool locked_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Callback> lock_waiters_ ABSL_GUARDED_BY(mu_);
  std::vector<Callback> pin_waiters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
