// One wait of a flow: for a source (a signal, a lock, operations under way), until a deadline. Base class of the
// awaiters.
//
// Up to three may end a wait at the same time: the source, the timer and the cancellation. The first one wins.
//   - Each of them finds the waiter in a list of its own, unlinks it, and calls End under that list's lock.
//   - The winner posts the flow after it has given up the lock. Nobody else touches the waiter after that lock.
//   - The flow, when it goes on, takes the waiter out of the other lists, under their locks, before it destroys it.
// Thread safety: End from any thread, as above. Ownership: lives in the frame of the coroutine that waits.
//
//   class Awaiter final : public Waiter { bool Enlist() override; void Delist() override; ... };
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "base/task/deadline.h"
#include "base/task/executor.h"
#include "base/task/wait_list.h"

namespace gdn {

enum class WaitEnd : uint8_t {
  kDone,       // the source has ended the wait
  kLate,       // the deadline has passed
  kCancelled,  // the deadline's CancelSource has cancelled the wait
};

class Waiter {
 public:
  struct Ending {
    bool won = false;  // this call has ended the wait
    // Flow to post after all locks are released. Null if `won` is false, or if the flow has not suspended yet and so
    // continues by itself.
    Flow* resume = nullptr;
  };
  // Ends the wait, unless it has ended already. Call under the lock of the list in which the waiter was found.
  Ending End(WaitEnd how);

  // True if there is nothing to wait for, so that the coroutine continues without suspending.
  virtual bool await_ready() { return false; }
  template <typename Promise>
  bool await_suspend(std::coroutine_handle<Promise> waiting) {
    return Suspend(waiting.promise().flow(), waiting);
  }

 protected:
  explicit Waiter(Deadline deadline) : deadline_(std::move(deadline)) {}
  ~Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Call first in await_resume. Takes the waiter out of all lists and returns how the wait has ended.
  WaitEnd Finish();
  // Returns OK for kDone, else the deadline's error: DEADLINE_EXCEEDED or CANCELLED.
  static absl::Status StatusOf(WaitEnd end);

  const Deadline deadline_;
  WaitNode node_{this};  // for the source's list

 private:
  enum class State : uint8_t { kDone, kLate, kCancelled, kArming, kWaiting };

  // Puts the waiter into the source's list and returns true. Returns false, and lists nothing, if there is nothing to
  // wait for.
  virtual bool Enlist() = 0;
  // Takes the waiter out of the source's list, under the source's lock, if it is still there.
  virtual void Delist() = 0;
  // Suspends `waiting`. Returns false if the wait has ended already, so that the coroutine continues at once.
  bool Suspend(Flow& flow, std::coroutine_handle<> waiting);

  std::atomic<State> state_{State::kDone};
  bool enlisted_ = false;
  bool ended_while_arming_ = false;
  bool timed_ = false;
  Flow* flow_ = nullptr;
  Executor* executor_ = nullptr;  // executor that has the timer
  Timer timer_{*this};
  WaitNode cancel_node_{this};
};

}  // namespace gdn
