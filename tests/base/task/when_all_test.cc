#include "base/task/when_all.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/task/resume_on.h"
#include "base/task/sleep.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "gtest/gtest.h"
#include "tests/support/simulated_executor.h"

namespace gdn {
namespace {

Task<absl::StatusOr<std::unique_ptr<int>>> SleepAndGive(Executor& executor, int seconds) {
  const absl::Status slept = co_await SleepUntil(executor.Now() + absl::Seconds(seconds));
  EXPECT_TRUE(slept.ok());
  if (seconds == 3) co_return absl::NotFoundError("three");
  co_return std::make_unique<int>(seconds);
}

TEST(WhenAll, GivesResultsInTheTasksOrderAfterTheLastHasEnded) {
  SimulatedExecutor executor(1);
  std::vector<Task<absl::StatusOr<std::unique_ptr<int>>>> tasks;
  for (const int seconds : {5, 3, 0, 1}) tasks.push_back(SleepAndGive(executor, seconds));
  const SteadyTime begun = executor.Now();
  const auto results = BlockOn(executor, WhenAll(std::move(tasks)));
  EXPECT_EQ(executor.Now() - begun, absl::Seconds(5));
  ASSERT_EQ(results.size(), 4);
  EXPECT_EQ(**results[0], 5);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(**results[2], 0);
  EXPECT_EQ(**results[3], 1);
}

TEST(WhenAll, OfNothingEndsAtOnce) {
  SimulatedExecutor executor(1);
  EXPECT_TRUE(BlockOn(executor, WhenAll(std::vector<Task<int>>())).empty());
}

Task<void> HopsAbout(int rounds) {
  Executor& here = co_await ThisExecutor();
  for (int i = 0; i < rounds; ++i) co_await ResumeOn(here);
}

Task<int> Rounds(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    std::vector<Task<void>> tasks;
    for (int branch = 0; branch < 8; ++branch) tasks.push_back(HopsAbout(branch % 3));
    co_await WhenAll(std::move(tasks));
  }
  co_return rounds;
}

TEST(WhenAll, JoinsBranchesThatRunOnSeveralThreads) {
  ThreadExecutor executor({.name = "test", .threads = 4});
  EXPECT_EQ(BlockOn(executor, Rounds(2000)), 2000);
}

}  // namespace
}  // namespace gdn
