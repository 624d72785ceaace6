// The executors: what each promises beyond running flows.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/task/deadline.h"
#include "base/task/resume_on.h"
#include "base/task/sleep.h"
#include "base/task/task_group.h"
#include "base/task/task_queue_executor.h"
#include "base/task/thread_executor.h"
#include "base/threads/task_queue.h"
#include "base/threads/this_thread.h"
#include "gtest/gtest.h"
#include "tests/base/task/completion.h"
#include "tests/support/simulated_executor.h"

namespace gdn {
namespace {

using Log = std::vector<std::pair<int, SteadyTime>>;

Task<void> Wanders(SimulatedExecutor& executor, int name, Log& log) {
  for (int i = 0; i < 5; ++i) {
    if (executor.Choose(2) == 0) {
      co_await ResumeOn(executor);
    } else {
      const absl::Status slept = co_await SleepUntil(executor.Now() + absl::Seconds(executor.Choose(3)));
      EXPECT_TRUE(slept.ok());
    }
    log.emplace_back(name, executor.Now());
  }
}

Log Wander(uint64_t seed) {
  SimulatedExecutor executor(seed);
  Log log;
  TaskGroup group(executor);
  for (int name = 0; name < 10; ++name) group.Spawn(Wanders(executor, name, log));
  group.Wait();
  return log;
}

TEST(SimulatedExecutor, RepeatsAnOrderForASeedAndHasOthersForOthers) {
  int others = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Log log = Wander(seed);
    ASSERT_EQ(log.size(), 50);
    ASSERT_EQ(log, Wander(seed)) << "seed " << seed;
    others += log != Wander(seed + 1) ? 1 : 0;
  }
  EXPECT_EQ(others, 50);
}

Task<void> NotesTime(Executor& executor, absl::Duration after, std::vector<SteadyTime>& times) {
  const absl::Status slept = co_await SleepUntil(executor.Now() + after);
  EXPECT_TRUE(slept.ok());
  times.push_back(executor.Now());
}

TEST(SimulatedExecutor, MovesItsClockOnlyToTimersAndOnlyWhenNothingCanRun) {
  SimulatedExecutor executor(7);
  const SteadyTime begun = executor.Now();
  std::vector<SteadyTime> times;
  TaskGroup group(executor);
  for (const int minutes : {3, 1, 2}) group.Spawn(NotesTime(executor, absl::Minutes(minutes), times));
  executor.RunFor(absl::Seconds(90));
  EXPECT_EQ(times, std::vector<SteadyTime>{begun + absl::Minutes(1)});
  EXPECT_EQ(executor.Now(), begun + absl::Seconds(90));
  executor.RunUntilIdle();
  EXPECT_EQ(times.size(), 3);
  EXPECT_EQ(executor.Now(), begun + absl::Minutes(3));
}

Task<void> SleepsTo(Executor& executor, SteadyTime time, Deadline deadline, int& slept) {
  const absl::Status status = co_await SleepUntil(time, deadline);
  if (!status.ok()) co_return;  // cancelled
  EXPECT_EQ(executor.Now(), time);
  ++slept;
}

TEST(SimulatedExecutor, WakesEachSleeperAtItsTimeWhateverOthersGiveUp) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SimulatedExecutor executor(seed);
    const auto soon = [&] { return executor.Now() + absl::Seconds(static_cast<int64_t>(1 + executor.Choose(100))); };
    CancelSource source;
    int slept = 0;
    int cancelled = 0;
    TaskGroup group(executor);
    for (int i = 0; i < 100; ++i) group.Spawn(SleepsTo(executor, soon(), source.Never(), cancelled));
    for (int i = 0; i < 100; ++i) group.Spawn(SleepsTo(executor, soon(), {}, slept));
    executor.RunFor(absl::Milliseconds(500));
    source.Cancel();
    group.Wait();
    EXPECT_EQ(slept, 100);
    EXPECT_EQ(cancelled, 0);
  }
}

TEST(SimulatedExecutorDeathTest, ASecondThreadEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        SimulatedExecutor executor(1);
        std::thread([&executor] { executor.RunOne(); }).join();
      },
      "used by a second thread");
}

TEST(ThreadExecutor, EndsSleepsInTheOrderOfTheirTimes) {
  ThreadExecutor executor({.name = "test", .threads = 1});
  std::vector<SteadyTime> times;
  const SteadyTime begun = executor.Now();
  {
    TaskGroup group(executor);
    for (const int ms : {30, 10, 20, 0, 10}) group.Spawn(NotesTime(executor, absl::Milliseconds(ms), times));
  }
  ASSERT_EQ(times.size(), 5);
  for (size_t i = 1; i < times.size(); ++i) EXPECT_LE(times[i - 1], times[i]);
  EXPECT_GE(times.back() - begun, absl::Milliseconds(30));
}

Task<void> WaitsInVain(Executor& executor, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    Completion<int> never;
    const auto set = never.setter();
    const auto result = co_await never.Wait(executor.Now() + absl::Microseconds(50));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
}

// Timers are set by each thread while the timers' thread is at any point of its loop; none may be missed.
TEST(ThreadExecutor, MissesNoTimer) {
  ThreadExecutor executor({.name = "test", .threads = 4});
  TaskGroup group(executor);
  for (int i = 0; i < 8; ++i) group.Spawn(WaitsInVain(executor, 500));
}

TEST(ThreadExecutorDeathTest, EndsTheProcessIfItsGroupsHaveNotEnded) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        std::optional<ThreadExecutor> executor(std::in_place, ThreadExecutorOptions{.name = "test", .threads = 1});
        std::vector<SteadyTime> times;
        TaskGroup group(*executor);
        group.Spawn(NotesTime(*executor, absl::Hours(1), times));
        executor.reset();
      },
      "before the task groups on it");
}

Task<std::string> WhereAmI() { co_return ThisThreadLabel().substr(0, ThisThreadLabel().find('.')); }

Task<std::vector<std::string>> Visits(TaskQueue& queue, Executor& executor) {
  std::vector<std::string> seen;
  seen.push_back(co_await WhereAmI());
  TaskQueueExecutor io(queue, Turn(), executor);
  seen.push_back(co_await RunOn(io, WhereAmI()));
  seen.push_back(co_await WhereAmI());
  co_await ResumeOn(io);
  const absl::Status slept = co_await SleepUntil(executor.Now() + absl::Milliseconds(1));
  EXPECT_TRUE(slept.ok());
  seen.push_back(co_await WhereAmI());  // still there after a wait
  co_await ResumeOn(executor);
  seen.push_back(co_await WhereAmI());
  co_return seen;
}

TEST(TaskQueueExecutor, RunsAFlowOnTheQueuesThreadsAndBack) {
  TaskQueue queue({.name = "test-io", .threads = 1});
  ThreadExecutor executor({.name = "test-flow", .threads = 2});
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(BlockOn(executor, Visits(queue, executor)),
              (std::vector<std::string>{"test-flow", "test-io", "test-flow", "test-io", "test-flow"}));
  }
}

}  // namespace
}  // namespace gdn
