#include "server/session/session_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/random.h"

namespace gdn::session_gate_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SessionGateTest : public ::testing::Test {
 protected:
  SessionGate::Callback Note(const std::string& what) {
    return [this, what] { heard_.push_back(what); };
  }

  SessionGate gate_;
  std::vector<std::string> heard_;
};

TEST_F(SessionGateTest, IsPinnedByManyAndLockedByOne) {
  EXPECT_TRUE(gate_.TryPin());
  EXPECT_TRUE(gate_.TryPin());
  gate_.PinAgain();
  EXPECT_EQ(gate_.pins(), 3);
  EXPECT_FALSE(gate_.TryLock());
  for (int i = 0; i < 3; ++i) gate_.Unpin();
  EXPECT_TRUE(gate_.TryLock());
  EXPECT_FALSE(gate_.TryLock());
  EXPECT_FALSE(gate_.TryPin());
  gate_.Unlock();
  EXPECT_TRUE(gate_.TryPin());
}

TEST_F(SessionGateTest, ALockComesWithTheLastUnpin) {
  ASSERT_TRUE(gate_.TryPin());
  gate_.PinAgain();
  gate_.Lock(Note("lock"));
  gate_.Unpin();
  EXPECT_THAT(heard_, IsEmpty());
  gate_.Unpin();
  EXPECT_THAT(heard_, ElementsAre("lock"));
}

TEST_F(SessionGateTest, AWaitingLockKeepsNewPinsOutButNotTheHoldersOfOne) {
  ASSERT_TRUE(gate_.TryPin());
  gate_.Lock(Note("lock"));
  EXPECT_FALSE(gate_.TryPin());
  EXPECT_FALSE(gate_.TryLock());
  gate_.WhenPinnable(Note("pin"));
  gate_.PinAgain();
  gate_.Unpin();
  EXPECT_THAT(heard_, IsEmpty());
  gate_.Unpin();
  EXPECT_THAT(heard_, ElementsAre("lock"));
  gate_.Unlock();
  EXPECT_THAT(heard_, ElementsAre("lock", "pin"));
  EXPECT_TRUE(gate_.TryPin());
}

TEST_F(SessionGateTest, LocksComeOneByOneInTheOrderOfTheCalls) {
  gate_.Lock(Note("a"));
  gate_.Lock(Note("b"));
  gate_.Lock(Note("c"));
  EXPECT_THAT(heard_, ElementsAre("a"));
  gate_.Unlock();
  EXPECT_THAT(heard_, ElementsAre("a", "b"));
  gate_.Unlock();
  gate_.Unlock();
  EXPECT_THAT(heard_, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(gate_.TryLock());
}

TEST_F(SessionGateTest, AHoldLetsPinsInAndKeepsLocksOut) {
  ASSERT_TRUE(gate_.TryLock());
  gate_.WhenPinnable(Note("pin"));
  gate_.Hold();
  EXPECT_THAT(heard_, ElementsAre("pin"));
  EXPECT_TRUE(gate_.TryPin());
  EXPECT_FALSE(gate_.TryLock());
  gate_.Lock(Note("lock"));
  EXPECT_TRUE(gate_.TryPin()) << "a lock that a hold keeps waiting keeps no steps waiting";
  gate_.Unpin();
  gate_.Unpin();
  EXPECT_THAT(heard_, ElementsAre("pin"));
  gate_.ReleaseHold();
  EXPECT_THAT(heard_, ElementsAre("pin", "lock"));
}

TEST_F(SessionGateTest, ALockWaitsForTheHoldAndThenForThePins) {
  ASSERT_TRUE(gate_.TryLock());
  gate_.Hold();
  ASSERT_TRUE(gate_.TryPin());
  gate_.Lock(Note("lock"));
  gate_.ReleaseHold();
  EXPECT_THAT(heard_, IsEmpty());
  EXPECT_FALSE(gate_.TryPin()) << "now it waits for the pins alone";
  gate_.WhenPinnable(Note("pin"));
  gate_.Unpin();
  EXPECT_THAT(heard_, ElementsAre("lock"));
  gate_.Unlock();
  EXPECT_THAT(heard_, ElementsAre("lock", "pin"));
}

TEST_F(SessionGateTest, ALockBecomesAPinWithoutAGap) {
  ASSERT_TRUE(gate_.TryLock());
  gate_.WhenPinnable(Note("pin"));
  gate_.LockToPin();
  EXPECT_EQ(gate_.pins(), 1);
  EXPECT_THAT(heard_, ElementsAre("pin"));
  EXPECT_FALSE(gate_.TryLock());
  gate_.Unpin();

  ASSERT_TRUE(gate_.TryLock());
  gate_.Lock(Note("lock"));
  gate_.LockToPin();
  EXPECT_THAT(heard_, ElementsAre("pin")) << "the lock waits for the pin that was made";
  gate_.Unpin();
  EXPECT_THAT(heard_, ElementsAre("pin", "lock"));
}

TEST_F(SessionGateTest, CallbacksMayUseTheGate) {
  ASSERT_TRUE(gate_.TryPin());
  int locks = 0;
  std::function<void()> again = [&] {
    if (++locks < 5) gate_.Lock(again);
    gate_.Unlock();
  };
  gate_.Lock(again);
  gate_.WhenPinnable([&] { heard_.emplace_back(gate_.TryPin() ? "pinned" : "refused"); });
  gate_.Unpin();
  EXPECT_EQ(locks, 5);
  EXPECT_THAT(heard_, ElementsAre("pinned"));
  EXPECT_EQ(gate_.pins(), 1);
}

// Eight threads, each of which goes on only when its own callback has come: a wakeup that is lost stops it for good.
TEST_F(SessionGateTest, LosesNoWakeupAndExcludesLocksFromPinsUnderManyThreads) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 2000;
  std::atomic<int> stepping{0}, locked{0}, violations{0};
  std::atomic<int> callbacks{0}, asked{0};
  const auto pin = [&] {
    while (!gate_.TryPin()) {
      absl::Notification retry;
      asked.fetch_add(1);
      gate_.WhenPinnable([&] {
        callbacks.fetch_add(1);
        retry.Notify();  // twice would end the process
      });
      retry.WaitForNotification();
    }
    stepping.fetch_add(1);
    if (locked.load() > 0) violations.fetch_add(1);
    stepping.fetch_sub(1);
    gate_.Unpin();
  };
  const auto lock = [&](int what) {
    absl::Notification granted;
    asked.fetch_add(1);
    gate_.Lock([&] {
      callbacks.fetch_add(1);
      granted.Notify();
    });
    granted.WaitForNotification();
    if (locked.fetch_add(1) > 0 || stepping.load() > 0) violations.fetch_add(1);
    locked.fetch_sub(1);
    if (what == 0) return gate_.Unlock();
    if (what == 1) {
      gate_.LockToPin();
      return gate_.Unpin();
    }
    gate_.Hold();
    gate_.ReleaseHold();
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Random random(static_cast<uint64_t>(i) + 1);
      for (int round = 0; round < kRounds; ++round) {
        const int what = random.NextInt(0, 7);
        if (what < 3) {
          lock(what);
        } else {
          pin();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(violations, 0);
  EXPECT_EQ(callbacks, asked);
  EXPECT_EQ(gate_.pins(), 0);
  EXPECT_TRUE(gate_.TryLock());
}

}  // namespace
}  // namespace gdn::session_gate_test
