#include "tests/base/task/semaphore.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/task/sleep.h"
#include "base/task/status_macros.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "gtest/gtest.h"
#include "tests/support/simulated_executor.h"

namespace gdn {
namespace {

// Takes units, notes it, and keeps them for a second.
Task<absl::Status> UseUnits(Executor& executor, Semaphore& semaphore, int64_t units, Deadline deadline, int name,
                            std::vector<int>& order) {
  GDN_CO_ASSIGN_OR_RETURN(const Semaphore::Permit permit, co_await semaphore.Take(units, deadline));
  order.push_back(name);
  EXPECT_EQ(permit.units(), units);
  co_return co_await SleepUntil(executor.Now() + absl::Seconds(1));
}

// Lets the flow of one task come before that of the next, whatever the seed.
void Begin(SimulatedExecutor& executor, TaskGroup& group, Task<absl::Status> task, std::vector<absl::Status>& ended) {
  group.Spawn(std::move(task), [&ended](absl::Status status) { ended.push_back(std::move(status)); });
  executor.RunOne();
}

TEST(Semaphore, ServesThoseThatWaitInTheirOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedExecutor executor(seed);
    Semaphore semaphore(1);
    std::vector<int> order;
    std::vector<absl::Status> ended;
    TaskGroup group(executor);
    for (int i = 0; i < 8; ++i) Begin(executor, group, UseUnits(executor, semaphore, 1, {}, i, order), ended);
    group.Wait();
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7})) << "seed " << seed;
    EXPECT_EQ(semaphore.free(), 1);
  }
}

TEST(Semaphore, LetsNoSmallRequestPassALargeOneUnlessThatGivesUp) {
  SimulatedExecutor executor(1);
  Semaphore semaphore(4);
  std::vector<int> order;
  std::vector<absl::Status> ended;
  TaskGroup group(executor);
  const SteadyTime begun = executor.Now();
  Begin(executor, group, UseUnits(executor, semaphore, 2, {}, 0, order), ended);
  Begin(executor, group, UseUnits(executor, semaphore, 4, begun + absl::Milliseconds(500), 1, order), ended);
  Begin(executor, group, UseUnits(executor, semaphore, 1, {}, 2, order), ended);
  Semaphore::Permit permit;
  EXPECT_FALSE(semaphore.TryTake(1, &permit));  // 2 are free, but others wait
  EXPECT_EQ(order, std::vector<int>{0});
  executor.RunFor(absl::Milliseconds(500));  // the large one gives up, and the small one behind it goes on
  EXPECT_EQ(order, (std::vector<int>{0, 2}));
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].code(), absl::StatusCode::kDeadlineExceeded);
  group.Wait();
  EXPECT_EQ(semaphore.free(), 4);
  EXPECT_TRUE(semaphore.TryTake(4, &permit));
  EXPECT_EQ(semaphore.free(), 0);
  permit.GiveBack();
  EXPECT_EQ(semaphore.free(), 4);
}

TEST(Semaphore, RefusesMoreUnitsThanThereAre) {
  SimulatedExecutor executor(1);
  Semaphore semaphore(4);
  std::vector<int> order;
  EXPECT_EQ(BlockOn(executor, UseUnits(executor, semaphore, 5, {}, 0, order)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(BlockOn(executor, UseUnits(executor, semaphore, 0, {}, 1, order)).ok());
  EXPECT_EQ(semaphore.free(), 4);
}

}  // namespace
}  // namespace gdn
