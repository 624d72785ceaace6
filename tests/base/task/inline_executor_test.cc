// InlineExecutor, OwnedFlow and Arrivals: what a call of gRPC is made of.
#include "base/task/inline_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/task/arrivals.h"
#include "base/task/owned_flow.h"
#include "base/task/status_macros.h"
#include "base/task/thread_executor.h"
#include "tests/support/simulated_executor.h"

namespace gdn::inline_executor_test {
namespace {

using ::testing::ElementsAre;

// A flow that notes what its tasks return.
class Call final : public OwnedFlow<absl::Status> {
 public:
  explicit Call(Executor& executor) : OwnedFlow<absl::Status>(executor) {}
  using OwnedFlow<absl::Status>::Start;
  std::vector<absl::Status> ended;
  std::function<void()> on_end;

 private:
  void Ended(absl::Status status) override {
    ended.push_back(std::move(status));
    if (on_end) on_end();
  }
};

Task<absl::Status> AfterAll(Arrivals& open, Deadline deadline) {
  GDN_CO_RETURN_IF_ERROR(co_await open.All(deadline));
  co_return absl::OkStatus();
}

class InlineExecutorTest : public ::testing::Test {
 protected:
  SimulatedExecutor timers_{/*seed=*/1};
  InlineExecutor here_{timers_};
};

TEST_F(InlineExecutorTest, ATaskThatNeverWaitsHasEndedWhenStartReturns) {
  Arrivals none;
  Call call(here_);
  call.Start(AfterAll(none, {}));
  ASSERT_EQ(call.ended.size(), 1u);
  EXPECT_TRUE(call.ended[0].ok());
  call.Start(AfterAll(none, {}));  // one task after another
  EXPECT_EQ(call.ended.size(), 2u);
}

TEST_F(InlineExecutorTest, TheThreadThatEndsTheLastOperationGoesOnWithTheFlow) {
  Arrivals open;
  open.Begin(3);
  open.Withdraw(1);
  Call call(here_);
  std::thread::id where;
  call.on_end = [&where] { where = std::this_thread::get_id(); };
  call.Start(AfterAll(open, {}));
  open.End();
  EXPECT_TRUE(call.ended.empty());
  std::thread last([&open] { open.End(); });
  const std::thread::id expected = last.get_id();
  last.join();
  ASSERT_EQ(call.ended.size(), 1u);
  EXPECT_EQ(where, expected);
}

TEST_F(InlineExecutorTest, AFlowThatAnotherMakesReadyRunsOnceThatOneHasReturned) {
  Arrivals first_open, second_open;
  first_open.Begin();
  second_open.Begin();
  std::vector<std::string> order;
  Call first(here_), second(here_);
  second.on_end = [&order] { order.emplace_back("second ended"); };
  first.on_end = [&order, &second_open] {
    second_open.End();
    order.emplace_back("first returns");
  };
  second.Start(AfterAll(second_open, {}));
  first.Start(AfterAll(first_open, {}));
  first_open.End();
  EXPECT_THAT(order, ElementsAre("first returns", "second ended"));
}

TEST_F(InlineExecutorTest, ACancelledWaitCanBeTakenUpAgain) {
  Arrivals open;
  open.Begin();
  CancelSource gone;
  Call call(here_);
  call.Start(AfterAll(open, gone.Never()));
  gone.Cancel();
  ASSERT_EQ(call.ended.size(), 1u);
  EXPECT_EQ(call.ended[0].code(), absl::StatusCode::kCancelled);
  call.Start(AfterAll(open, {}));
  EXPECT_EQ(call.ended.size(), 1u);
  open.End();
  ASSERT_EQ(call.ended.size(), 2u);
  EXPECT_TRUE(call.ended[1].ok());
}

TEST_F(InlineExecutorTest, ADeadlineEndsTheWaitByTheTimers) {
  Arrivals open;
  open.Begin();
  Call call(here_);
  call.Start(AfterAll(open, timers_.Now() + absl::Seconds(1)));
  EXPECT_TRUE(call.ended.empty());
  timers_.RunFor(absl::Seconds(2));
  ASSERT_EQ(call.ended.size(), 1u);
  EXPECT_EQ(call.ended[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(InlineExecutorTest, TheOwnerMayGoWhenTheTaskHasEnded) {
  Arrivals open;
  open.Begin();
  auto call = std::make_unique<Call>(here_);
  call->on_end = [&call] { call.reset(); };
  call->Start(AfterAll(open, {}));
  open.End();
  EXPECT_EQ(call, nullptr);
}

// Under ThreadSanitizer and AddressSanitizer this is the proof that the frame, and Arrivals in it, may go at once.
Task<absl::Status> ManyOperations(std::vector<std::function<void()>>& ends) {
  Arrivals open;
  for (int i = 0; i < 4; ++i) {
    open.Begin();
    ends.push_back([&open] { open.End(); });
  }
  co_await open.All();
  co_return absl::OkStatus();
}

TEST(Arrivals, EndFromManyThreadsAtOnceResumesOnce) {
  ThreadExecutor timers({.name = "timers", .threads = 1});
  InlineExecutor here(timers);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::function<void()>> ends;
    std::atomic<int> ended{0};
    Call call(here);
    call.on_end = [&ended] { ++ended; };
    call.Start(ManyOperations(ends));
    std::vector<std::thread> threads;
    threads.reserve(ends.size());
    for (const std::function<void()>& end : ends) threads.emplace_back(end);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(ended, 1);
    ASSERT_TRUE(call.ended.front().ok());
  }
}

}  // namespace
}  // namespace gdn::inline_executor_test
