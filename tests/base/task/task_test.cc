#include "base/task/task.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "gtest/gtest.h"
#include "tests/base/task/completion.h"
#include "tests/support/simulated_executor.h"

namespace gdn {
namespace {

// The most stack that any of a test's coroutines may lie below the first one. It is far above what the loop of
// Flow::Run needs under AddressSanitizer, and far below what 100,000 nested resumes would need (above 10 MB).
constexpr uintptr_t kMostStack = 16 << 10;  // bytes
constexpr int kMany = 100'000;

class StackUse {
 public:
  [[gnu::noinline]] void Look() {
    const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    lowest_ = std::min(lowest_, here);
    highest_ = std::max(highest_, here);
  }
  uintptr_t bytes() const { return highest_ - lowest_; }

 private:
  uintptr_t lowest_ = UINTPTR_MAX;
  uintptr_t highest_ = 0;
};

class CountsItself {
 public:
  explicit CountsItself(int& live) : live_(&live) { ++*live_; }
  CountsItself(CountsItself&& other) noexcept : live_(other.live_) { ++*live_; }
  ~CountsItself() { --*live_; }

 private:
  int* live_;
};

Task<int> Number(int number) { co_return number; }
Task<int> Sum(int a, int b) {
  const int left = co_await Number(a);
  const int right = co_await Number(b);
  co_return left + right;
}
Task<std::unique_ptr<std::string>> Owned() { co_return std::make_unique<std::string>("moved, never copied"); }
Task<absl::Status> Fails() { co_return absl::NotFoundError("none"); }
Task<absl::StatusOr<int>> Gives(int number) { co_return number; }
Task<absl::StatusOr<int>> Refuses() { co_return absl::NotFoundError("none"); }

TEST(Task, ReturnsWhatItsCoroutineReturns) {
  SimulatedExecutor executor(1);
  EXPECT_EQ(BlockOn(executor, Sum(2, 3)), 5);
  EXPECT_EQ(*BlockOn(executor, Owned()), "moved, never copied");
  EXPECT_EQ(BlockOn(executor, Fails()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*BlockOn(executor, Gives(7)), 7);
  EXPECT_EQ(BlockOn(executor, Refuses()).status().code(), absl::StatusCode::kNotFound);
}

Task<absl::StatusOr<int>> Macros(bool fail_first, bool fail_second, std::vector<int>& reached) {
  if (fail_first) GDN_CO_RETURN_IF_ERROR(co_await Fails());
  reached.push_back(1);
  GDN_CO_ASSIGN_OR_RETURN(const int seven, co_await Gives(7));
  reached.push_back(seven);
  if (fail_second) {
    GDN_CO_ASSIGN_OR_RETURN([[maybe_unused]] const int none, co_await Refuses());
    reached.push_back(none);
  }
  co_return seven;
}

TEST(Task, StatusMacrosReturnEarlyFromACoroutine) {
  SimulatedExecutor executor(1);
  std::vector<int> reached;
  EXPECT_EQ(BlockOn(executor, Macros(true, false, reached)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reached, std::vector<int>{});
  EXPECT_EQ(BlockOn(executor, Macros(false, true, reached)).status().message(), "none");
  EXPECT_EQ(reached, (std::vector<int>{1, 7}));
  EXPECT_EQ(*BlockOn(executor, Macros(false, false, reached)), 7);
}

Task<void> Mark(CountsItself /*held*/, bool& begun) {
  begun = true;
  co_return;
}

TEST(Task, NeverRunsUnlessItIsAwaited) {
  int live = 0;
  bool begun = false;
  {
    const Task<void> task = Mark(CountsItself(live), begun);
    EXPECT_EQ(live, 1);
  }
  EXPECT_FALSE(begun);
  EXPECT_EQ(live, 0);
}

Task<void> LooksAfterEachAwait(int& live, std::vector<int>& lives) {
  bool begun = false;
  co_await Mark(CountsItself(live), begun);
  lives.push_back(live);
  Task<void> named = Mark(CountsItself(live), begun);
  lives.push_back(live);
  co_await std::move(named);
  lives.push_back(live);
}

TEST(Task, FrameIsGoneAfterTheExpressionThatAwaitsIt) {
  SimulatedExecutor executor(1);
  int live = 0;
  std::vector<int> lives;
  BlockOn(executor, LooksAfterEachAwait(live, lives));
  EXPECT_EQ(lives, (std::vector<int>{0, 1, 0}));
}

Task<void> AwaitsTwice() {
  Task<int> task = Number(1);
  co_await std::move(task);
  co_await std::move(task);  // NOLINT(bugprone-use-after-move): the defect that the test is about
}

TEST(TaskDeathTest, ASecondAwaitEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        SimulatedExecutor executor(1);
        BlockOn(executor, AwaitsTwice());
      },
      "awaited a second time");
}

Task<int64_t> ReadyAwaits(StackUse& stack) {
  int64_t sum = 0;
  for (int i = 0; i < kMany; ++i) {
    Completion<int> ready;
    ready.setter()(1);
    const absl::StatusOr<int> one = co_await ready.Wait();
    sum += *one;
    stack.Look();
  }
  co_return sum;
}

Task<int> Looks(StackUse& stack) {
  stack.Look();
  co_return 1;
}
Task<int64_t> AwaitsOfTasks(StackUse& stack) {
  int64_t sum = 0;
  for (int i = 0; i < kMany; ++i) sum += co_await Looks(stack);
  co_return sum;
}

Task<int> Deeper(int depth, StackUse& stack) {
  stack.Look();
  if (depth == 0) co_return 0;
  const int below = co_await Deeper(depth - 1, stack);
  stack.Look();
  co_return below + 1;
}

Task<int> Wrap(Task<int> inner, StackUse& stack) {
  const int below = co_await std::move(inner);
  stack.Look();
  co_return below + 1;
}
Task<int> Chain(StackUse& stack) {
  Task<int> chain = Number(0);
  for (int i = 0; i < kMany; ++i) chain = Wrap(std::move(chain), stack);
  co_return co_await std::move(chain);
}

TEST(Task, AHundredThousandReadyAwaitsNeedNoStack) {
  SimulatedExecutor executor(1);
  StackUse stack;
  EXPECT_EQ(BlockOn(executor, ReadyAwaits(stack)), kMany);
  EXPECT_LT(stack.bytes(), kMostStack);
}

TEST(Task, AHundredThousandTasksOneAfterAnotherNeedNoStack) {
  SimulatedExecutor executor(1);
  StackUse stack;
  EXPECT_EQ(BlockOn(executor, AwaitsOfTasks(stack)), kMany);
  EXPECT_LT(stack.bytes(), kMostStack);
}

TEST(Task, AHundredThousandTasksInsideEachOtherNeedNoStack) {
  SimulatedExecutor executor(1);
  StackUse stack;
  EXPECT_EQ(BlockOn(executor, Deeper(kMany, stack)), kMany);
  EXPECT_EQ(BlockOn(executor, Chain(stack)), kMany);
  EXPECT_LT(stack.bytes(), kMostStack);
}

Task<void> CountsUp(int& count, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    Executor& here = co_await ThisExecutor();
    co_await ResumeOn(here);
    ++count;
  }
}

TEST(TaskGroup, WaitsForAllTasksAndForThoseThatTheySpawn) {
  ThreadExecutor executor({.name = "test", .threads = 3});
  std::vector<int> counts(50, 0);
  {
    TaskGroup group(executor);
    for (int& count : counts) group.Spawn(CountsUp(count, 100));
    group.Wait();
    EXPECT_EQ(group.open(), 0);
    for (const int count : counts) EXPECT_EQ(count, 100);
    for (int& count : counts) {
      group.Spawn(CountsUp(count, 1), [&group, &count] { group.Spawn(CountsUp(count, 1)); });
    }
  }
  for (const int count : counts) EXPECT_EQ(count, 102);
}

TEST(TaskGroup, GivesATasksResultToItsDone) {
  SimulatedExecutor executor(3);
  int result = 0;
  TaskGroup group(executor);
  group.Spawn(Sum(20, 22), [&result](int sum) { result = sum; });
  EXPECT_EQ(result, 0);  // not before the executor runs it
  group.Wait();
  EXPECT_EQ(result, 42);
}

Task<void> WaitsForever() {
  Completion<int> never;
  const Completion<int>::Setter kept = never.setter();
  const absl::StatusOr<int> result = co_await never.Wait();
  EXPECT_FALSE(result.ok());
}

TEST(TaskGroupDeathTest, AHungCompletionOnASimulatedExecutorEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        SimulatedExecutor executor(1);
        TaskGroup group(executor);
        group.Spawn(WaitsForever());
      },
      "a simulated wait never ends");
}

}  // namespace
}  // namespace gdn
