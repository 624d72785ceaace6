#include "base/task/signal.h"

#include <coroutine>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/task/sleep.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "gtest/gtest.h"
#include "tests/support/simulated_executor.h"

namespace gdn {
namespace {

Task<absl::Status> Await(Signal& signal, uint64_t seen, Deadline deadline) {
  co_return co_await signal.WaitBeyond(seen, deadline);
}

TEST(Signal, WakesAllThatWaitAndThoseThatComeLater) {
  SimulatedExecutor executor(1);
  Signal signal;
  std::vector<absl::Status> woken;
  TaskGroup group(executor);
  for (int i = 0; i < 10; ++i) {
    group.Spawn(Await(signal, 0, {}), [&woken](absl::Status status) { woken.push_back(status); });
  }
  executor.RunUntilIdle();
  EXPECT_TRUE(woken.empty());
  signal.Raise();
  executor.RunUntilIdle();
  EXPECT_EQ(woken.size(), 10);
  EXPECT_TRUE(BlockOn(executor, Await(signal, 0, {})).ok());  // it was raised
  for (const absl::Status& status : woken) EXPECT_TRUE(status.ok());
}

TEST(Signal, AWaitForTheNextRaiseMissesNoneThatCameBefore) {
  SimulatedExecutor executor(1);
  Signal signal;
  signal.Raise();
  const uint64_t seen = signal.count();
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(BlockOn(executor, Await(signal, seen, executor.Now() + absl::Seconds(1))).code(),
            absl::StatusCode::kDeadlineExceeded);
  signal.Raise();
  EXPECT_TRUE(BlockOn(executor, Await(signal, seen, {})).ok());
}

// Raises the signal after the wait has looked at the count, and before it is in the signal's list.
class RaisesMeanwhile {
 public:
  RaisesMeanwhile(Signal& signal, Deadline deadline) : signal_(signal), inner_(signal.Wait(std::move(deadline))) {}
  bool await_ready() {
    const bool ready = inner_.await_ready();
    signal_.Raise();
    return ready;
  }
  template <typename Promise>
  bool await_suspend(std::coroutine_handle<Promise> waiting) {
    return inner_.await_suspend(waiting);
  }
  absl::Status await_resume() { return inner_.await_resume(); }

 private:
  Signal& signal_;
  Signal::Awaiter inner_;
};

Task<absl::Status> AwaitRaisedMeanwhile(Signal& signal, Deadline deadline) {
  co_return co_await RaisesMeanwhile(signal, deadline);
}

TEST(Signal, ARaiseBetweenTheLookAndTheWaitIsNotMissed) {
  SimulatedExecutor executor(1);
  Signal signal;
  EXPECT_TRUE(BlockOn(executor, AwaitRaisedMeanwhile(signal, executor.Now() + absl::Seconds(1))).ok());
}

TEST(Signal, ForgetsWaitersThatTheirDeadlineHasEnded) {
  SimulatedExecutor executor(1);
  Signal signal;
  EXPECT_EQ(BlockOn(executor, Await(signal, 0, executor.Now() + absl::Seconds(1))).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(BlockOn(executor, Await(signal, 0, executor.Now())).code(), absl::StatusCode::kDeadlineExceeded);
  signal.Raise();  // touches none of the frames that are gone
}

}  // namespace
}  // namespace gdn
