#include "tests/base/task/completion.h"

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/task/resume_on.h"
#include "base/task/sleep.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "gtest/gtest.h"
#include "tests/support/simulated_executor.h"

namespace gdn {
namespace {

template <typename T>
Task<WaitResult<T>> Await(Completion<T>& completion, Deadline deadline) {
  co_return co_await completion.Wait(deadline);
}

TEST(Completion, GivesAResultThatIsThereWithoutLeavingTheFlow) {
  SimulatedExecutor executor(1);
  Completion<int> number;
  EXPECT_TRUE(number.setter()(5));
  TaskGroup group(executor);
  std::optional<absl::StatusOr<int>> result;
  group.Spawn(Await(number, executor.Now() - absl::Seconds(1)),  // it wins over a deadline that has passed
              [&result](absl::StatusOr<int> given) { result = std::move(given); });
  EXPECT_TRUE(executor.RunOne());  // one run, no second
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(**result, 5);
  EXPECT_FALSE(executor.RunOne());
}

TEST(Completion, GivesResultsOfEachKind) {
  SimulatedExecutor executor(1);
  Completion<void> nothing;
  EXPECT_TRUE(nothing.setter()());
  EXPECT_TRUE(BlockOn(executor, Await(nothing, {})).ok());
  Completion<absl::Status> status;
  EXPECT_TRUE(status.setter()(absl::NotFoundError("none")));
  EXPECT_EQ(BlockOn(executor, Await(status, {})).code(), absl::StatusCode::kNotFound);
  Completion<absl::StatusOr<std::string>> text;
  EXPECT_TRUE(text.setter()(std::string("text")));
  EXPECT_EQ(*BlockOn(executor, Await(text, {})), "text");
}

TEST(Completion, OnlyTheFirstResultCounts) {
  SimulatedExecutor executor(1);
  Completion<int> number;
  const auto set = number.setter();
  EXPECT_TRUE(set(5));
  EXPECT_FALSE(set(6));
  EXPECT_EQ(*BlockOn(executor, Await(number, {})), 5);
}

TEST(Completion, EndsWithDeadlineExceededAndDropsALateResult) {
  SimulatedExecutor executor(1);
  std::optional<Completion<std::string>> text(std::in_place);
  const auto set = text->setter();
  const SteadyTime begun = executor.Now();
  const auto result = BlockOn(executor, Await(*text, begun + absl::Seconds(30)));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReason(result.status()), reason::kDeadlineExceeded);
  EXPECT_EQ(executor.Now() - begun, absl::Seconds(30));
  text.reset();
  EXPECT_TRUE(set("nobody waits any more"));
}

Task<void> CancelsAt(Executor& executor, SteadyTime time, CancelSource& source) {
  const absl::Status slept = co_await SleepUntil(time);
  EXPECT_TRUE(slept.ok());
  EXPECT_EQ(executor.Now(), time);
  source.Cancel();
}

TEST(Completion, EndsWithCancelled) {
  SimulatedExecutor executor(1);
  CancelSource source;
  Completion<int> never;
  const auto set = never.setter();
  const SteadyTime begun = executor.Now();
  TaskGroup group(executor);
  group.Spawn(CancelsAt(executor, begun + absl::Seconds(2), source));
  const auto result = BlockOn(executor, Await(never, source.Until(begun + absl::Seconds(30))));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ErrorReason(result.status()), reason::kCallCancelled);
  EXPECT_EQ(executor.Now() - begun, absl::Seconds(2));  // the clock never went to the deadline
  EXPECT_EQ(BlockOn(executor, Await(never, source.Never())).status().code(), absl::StatusCode::kCancelled);
}

TEST(Completion, EndsWithInternalIfItsSettersAreGone) {
  SimulatedExecutor executor(1);
  Completion<int> dropped;
  {
    const auto set = dropped.setter();
    const auto copy = set;  // NOLINT(performance-unnecessary-copy-initialization): the last copy counts
  }
  EXPECT_EQ(BlockOn(executor, Await(dropped, {})).status().code(), absl::StatusCode::kInternal);
}

Task<absl::StatusOr<int>> AwaitFromThread(std::vector<std::thread>& threads) {
  Completion<int> number;
  threads.emplace_back([set = number.setter()] { set(9); });
  co_return co_await number.Wait();
}

TEST(Completion, IsSetFromAnotherThread) {
  ThreadExecutor executor({.name = "test", .threads = 1});
  for (int round = 0; round < 200; ++round) {
    std::vector<std::thread> threads;
    EXPECT_EQ(*BlockOn(executor, AwaitFromThread(threads)), 9);
    for (std::thread& thread : threads) thread.join();
  }
}

Task<void> SleepsUnder(Deadline deadline, SteadyTime until, absl::Status& slept) {
  slept = co_await SleepUntil(until, deadline);
}

TEST(SleepUntil, EndsAtItsTimeOrWithItsDeadline) {
  SimulatedExecutor executor(1);
  absl::Status slept;
  const SteadyTime begun = executor.Now();
  BlockOn(executor, SleepsUnder({}, begun + absl::Hours(24), slept));
  EXPECT_TRUE(slept.ok());
  EXPECT_EQ(executor.Now() - begun, absl::Hours(24));
  BlockOn(executor, SleepsUnder({}, begun, slept));  // has passed
  EXPECT_TRUE(slept.ok());
  BlockOn(executor, SleepsUnder(begun + absl::Hours(25), begun + absl::Hours(48), slept));
  EXPECT_EQ(slept.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(executor.Now() - begun, absl::Hours(25));
  CancelSource source;
  source.Cancel();
  BlockOn(executor, SleepsUnder(source.Never(), begun + absl::Hours(48), slept));
  EXPECT_EQ(slept.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(executor.Now() - begun, absl::Hours(25));
}

TEST(Deadline, ChecksItsTimeAndItsCancellation) {
  const SteadyTime now = SteadyTime::FromNanos(1'000'000'000);
  CancelSource source;
  const Deadline deadline = source.Until(now + absl::Seconds(9));
  EXPECT_TRUE(deadline.Check(now).ok());
  EXPECT_EQ(deadline.Check(now + absl::Seconds(9)).code(), absl::StatusCode::kDeadlineExceeded);
  const Deadline sooner = deadline.NotAfter(now + absl::Seconds(1));
  EXPECT_EQ(sooner.time(), now + absl::Seconds(1));
  EXPECT_EQ(deadline.NotAfter(now + absl::Seconds(20)).time(), deadline.time());
  source.Cancel();
  EXPECT_EQ(sooner.Check(now).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Deadline().Check(now).ok());
}

}  // namespace
}  // namespace gdn
