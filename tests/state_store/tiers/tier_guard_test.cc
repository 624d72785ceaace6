// TierGuard: calls of a tier that hangs end, and it is asked no further ones until it answers.
#include "state_store/tiers/tier_guard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/error.h"
#include "base/threads/this_thread.h"
#include "state_store/tiers/tier_stack.h"
#include "tests/state_store/tiers/fake_tier.h"

namespace gdn::tier_guard_test {
namespace {

constexpr TierGuardOptions kSoon = {.stall_after = absl::Milliseconds(80), .probe_every = absl::Milliseconds(1)};

class TierGuardTest : public ::testing::Test {
 protected:
  // Loads wait until Release, and then fail with `status`, or work if it is OK.
  void HangLoads(const absl::Status& status = absl::OkStatus()) {
    tier_.OnLoad([this, status](const StateKey&) {
      ++loads_;
      released_.WaitForNotification();
      tier_.FailLoads(status);
    });
  }
  void AwaitAnswers() const {
    while (!guard_.Answers().ok()) std::this_thread::yield();
  }
  static void ExpectNoAnswer(const absl::Status& status) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ErrorReason(status), reason::kTierUnavailable);
    EXPECT_EQ(ErrorMetadata(status).at("tier"), "disk");
  }

  std::atomic<int> loads_{0};
  absl::Notification released_;
  FakeTier tier_{"disk", /*durable=*/true, /*limit_bytes=*/1000};
  TierGuard guard_{tier_, kSoon};
};

TEST_F(TierGuardTest, PassesOnWhatTheTierAnswers) {
  ASSERT_TRUE(guard_.Store(Key("a"), MakeVersion(7)).ok());
  EXPECT_EQ(VersionOf(guard_.Load(Key("a")).value()), 7);
  EXPECT_TRUE(absl::IsNotFound(guard_.Load(Key("b")).status()));
  EXPECT_EQ(guard_.Describe(Key("a"))->bytes, 100);
  EXPECT_TRUE(guard_.Erase(Key("a"), /*all=*/true).ok());
  EXPECT_EQ(guard_.usage().sessions, 0);
  EXPECT_TRUE(guard_.Answers().ok());
}

TEST_F(TierGuardTest, GivesACallUpThatHangsAndAsksTheTierNothingUntilItEnds) {
  ASSERT_TRUE(guard_.Store(Key("a"), MakeVersion(1)).ok());
  const int64_t stores = tier_.store_calls();
  HangLoads();
  ExpectNoAnswer(guard_.Load(Key("a")).status());
  for (int i = 0; i < 100; ++i) {
    ExpectNoAnswer(guard_.Load(Key("a")).status());
    ExpectNoAnswer(guard_.Store(Key("a"), MakeVersion(2)).status());
    ExpectNoAnswer(guard_.Erase(Key("a"), /*all=*/false));
  }
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(tier_.store_calls(), stores);
  ExpectNoAnswer(guard_.Answers());
  EXPECT_NE(guard_.usage().problem, "");
  released_.Notify();
  AwaitAnswers();
  EXPECT_EQ(guard_.usage().problem, "");
  EXPECT_EQ(VersionOf(guard_.Load(Key("a")).value()), 1);
  EXPECT_FALSE(tier_.overlapped());
}

TEST_F(TierGuardTest, CallsThatHangAtTheSameTimeAreAllGivenUp) {
  HangLoads();
  std::vector<std::thread> threads;
  for (int i = 0; i < 20; ++i) {  // more than the guard has threads
    threads.emplace_back([this, i] { ExpectNoAnswer(guard_.Load(Key("s" + std::to_string(i))).status()); });
  }
  for (std::thread& thread : threads) thread.join();
  const int asked = loads_;
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 8);
  released_.Notify();
  AwaitAnswers();
  EXPECT_TRUE(absl::IsNotFound(guard_.Load(Key("s0")).status()));
}

// Its loads fail once `ready` returns; the fifth probe is answered.
class ProbedTier final : public StateTier {
 public:
  explicit ProbedTier(std::function<void()> ready) : ready_(std::move(ready)) {}
  std::string_view name() const override { return "disk"; }
  bool durable() const override { return true; }
  absl::StatusOr<StoreResult> Store(const StateKey&, const SessionImagePtr&) override { return StoreResult(); }
  absl::StatusOr<SessionImagePtr> Load(const StateKey&) override {
    ++loads;
    ready_();
    return Unavailable("disk");
  }
  absl::Status Erase(const StateKey&, bool) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<StoredSession>> List() override { return std::vector<StoredSession>(); }
  absl::Status Probe() override { return ++probes < 5 ? Unavailable("disk") : absl::OkStatus(); }
  TierUsage usage() const override { return {}; }

  std::atomic<int> loads{0}, probes{0};

 private:
  const std::function<void()> ready_;
};

TEST_F(TierGuardTest, ATierWhoseHungCallTimesOutIsProbedUntilItAnswers) {
  ProbedTier tier([this] { released_.WaitForNotification(); });
  TierGuard guard(tier, kSoon);
  ExpectNoAnswer(guard.Load(Key("a")).status());
  released_.Notify();
  while (!guard.Answers().ok()) std::this_thread::yield();
  EXPECT_EQ(tier.loads, 1);
  EXPECT_EQ(tier.probes, 5);
}

TEST_F(TierGuardTest, ATierWhoseCallFailsAfterAWaitIsAskedNoOtherUntilItAnswersAProbe) {
  ProbedTier tier([] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); });
  TierGuard guard(tier, kSoon);
  ExpectNoAnswer(guard.Load(Key("a")).status());
  while (tier.probes < 4) ExpectNoAnswer(guard.Load(Key("b")).status());
  while (!guard.Answers().ok()) std::this_thread::yield();
  EXPECT_LE(tier.loads, 2) << "another one may have come before the first was known to have failed";
}

TEST_F(TierGuardTest, ACallThatWorksOrGoesOnIsNotGivenUp) {
  tier_.OnLoad([](const StateKey&) {
    // Longer than the guard waits for one that stands still: many short waits, then work.
    for (int i = 0; i < 40; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (std::chrono::steady_clock::now() < end) {
    }
  });
  EXPECT_TRUE(absl::IsNotFound(guard_.Load(Key("a")).status()));
  EXPECT_TRUE(guard_.Answers().ok());
}

TEST_F(TierGuardTest, ACallerThatGivesWayIsServedByAThreadThatDoes) {
  std::atomic<bool> gives_way{false};
  tier_.OnStore([&](const StateKey&) { gives_way = GivesWay::here(); });
  ASSERT_TRUE(guard_.Store(Key("a"), MakeVersion(1)).ok());
  EXPECT_FALSE(gives_way);
  const GivesWay here;
  ASSERT_TRUE(guard_.Store(Key("a"), MakeVersion(2)).ok());
  EXPECT_TRUE(gives_way);
}

TEST_F(TierGuardTest, AStackLeavesATierThatHangsAloneAndUsesTheOthers) {
  FakeTier redis("redis", /*durable=*/true, /*limit_bytes=*/1000);
  TierStack stack({&guard_, &redis});
  ASSERT_TRUE(stack.Park(Key("a"), MakeVersion(1)).ok());
  ASSERT_EQ(stack.PlaceOf(Key("a")), "disk");
  EXPECT_TRUE(stack.HasCopy(tier_, Key("a"))) << "the guard stands for its tier";
  HangLoads();
  ExpectNoAnswer(stack.Fetch(Key("a")).status());
  ExpectNoAnswer(stack.CanFetch(Key("a")));
  const int64_t stores = tier_.store_calls();
  ASSERT_TRUE(stack.Park(Key("b"), MakeVersion(2)).ok());
  EXPECT_EQ(stack.PlaceOf(Key("b")), "redis");
  EXPECT_TRUE(stack.CanFetch(Key("b")).ok());
  EXPECT_EQ(VersionOf(stack.Fetch(Key("b")).value()), 2);
  EXPECT_TRUE(stack.TakesStates().ok());
  EXPECT_EQ(tier_.store_calls(), stores);
  EXPECT_EQ(loads_, 1);
  released_.Notify();
  AwaitAnswers();
  EXPECT_EQ(VersionOf(stack.Fetch(Key("a")).value()), 1);
}

TEST_F(TierGuardTest, AStoreThatWasGivenUpAndEndsLateIsNeverTakenForAnOlderState) {
  FakeTier redis("redis", /*durable=*/true, /*limit_bytes=*/1000);
  TierStack stack({&guard_, &redis});
  ASSERT_TRUE(stack.Park(Key("a"), MakeVersion(1)).ok());
  stack.Release(Key("a"));
  HeldStore held(tier_, Key("a"));
  ASSERT_TRUE(stack.Park(Key("a"), MakeVersion(2)).ok());  // given up here, and put into Redis
  EXPECT_EQ(stack.PlaceOf(Key("a")), "redis");
  stack.Release(Key("a"));
  ASSERT_TRUE(stack.Park(Key("a"), MakeVersion(3)).ok());
  held.Release();
  AwaitAnswers();
  EXPECT_EQ(VersionOf(stack.Fetch(Key("a")).value()), 3);
  stack.Release(Key("a"));
  ASSERT_TRUE(stack.Park(Key("b"), MakeVersion(1)).ok());  // pays what the disk owes of "a"
  EXPECT_FALSE(tier_.versions().contains(Key("a")));
  EXPECT_FALSE(tier_.overlapped());
}

}  // namespace
}  // namespace gdn::tier_guard_test
