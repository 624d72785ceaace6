#include "server/session/session_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/string_cat.h"
#include "base/task/deadline.h"
#include "base/task/inline_executor.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "base/threads/task_queue.h"
#include "tests/server/admission/inline_flows.h"
#include "tests/support/random.h"

namespace gdn::session_gate_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SessionGateTest : public ::testing::Test {
 protected:
  // Each waits, and notes its name once it is let in, or its name and the error.
  void Lock(const std::string& name) { LockUntil(name, flows_.end.Never()); }
  void LockUntil(const std::string& name, Deadline deadline) {
    flows_.group.Spawn(NoteLock(name, std::move(deadline)));
  }
  void WaitForPins(const std::string& name) { WaitForPinsUntil(name, flows_.end.Never()); }
  void WaitForPinsUntil(const std::string& name, Deadline deadline) {
    flows_.group.Spawn(NotePinnable(name, std::move(deadline)));
  }
  Deadline In(absl::Duration time) const { return flows_.end.Until(flows_.time.Now() + time); }

  absl::Mutex mu_;
  SessionGate gate_{mu_};
  std::vector<std::string> heard_;
  InlineFlows flows_;

 private:
  Task<void> NoteLock(std::string name, Deadline deadline) {
    const absl::Status locked = co_await gate_.Lock(deadline);
    Note(name, locked);
  }
  Task<void> NotePinnable(std::string name, Deadline deadline) {
    const absl::Status pinnable = co_await gate_.Pinnable(deadline);
    Note(name, pinnable);
  }
  void Note(const std::string& name, const absl::Status& status) {
    heard_.push_back(status.ok() ? name : StrCat(name, " ", absl::StatusCodeToString(status.code())));
  }
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
  Lock("lock");
  gate_.Unpin();
  EXPECT_THAT(heard_, IsEmpty());
  gate_.Unpin();
  EXPECT_THAT(heard_, ElementsAre("lock"));
}

TEST_F(SessionGateTest, AWaitingLockKeepsNewPinsOutButNotTheHoldersOfOne) {
  ASSERT_TRUE(gate_.TryPin());
  Lock("lock");
  EXPECT_FALSE(gate_.TryPin());
  EXPECT_FALSE(gate_.TryLock());
  WaitForPins("pin");
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
  Lock("a");
  Lock("b");
  Lock("c");
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
  WaitForPins("pin");
  gate_.Hold();
  EXPECT_THAT(heard_, ElementsAre("pin"));
  EXPECT_TRUE(gate_.TryPin());
  EXPECT_FALSE(gate_.TryLock());
  Lock("lock");
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
  Lock("lock");
  gate_.ReleaseHold();
  EXPECT_THAT(heard_, IsEmpty());
  EXPECT_FALSE(gate_.TryPin()) << "now it waits for the pins alone";
  WaitForPins("pin");
  gate_.Unpin();
  EXPECT_THAT(heard_, ElementsAre("lock"));
  gate_.Unlock();
  EXPECT_THAT(heard_, ElementsAre("lock", "pin"));
}

TEST_F(SessionGateTest, ALockBecomesAPinWithoutAGap) {
  ASSERT_TRUE(gate_.TryLock());
  WaitForPins("pin");
  gate_.LockToPin();
  EXPECT_EQ(gate_.pins(), 1);
  EXPECT_THAT(heard_, ElementsAre("pin"));
  EXPECT_FALSE(gate_.TryLock());
  gate_.Unpin();

  ASSERT_TRUE(gate_.TryLock());
  Lock("lock");
  gate_.LockToPin();
  EXPECT_THAT(heard_, ElementsAre("pin")) << "the lock waits for the pin that was made";
  gate_.Unpin();
  EXPECT_THAT(heard_, ElementsAre("pin", "lock"));
}

Task<void> LockAndUnlock(SessionGate& gate, int& locks) {
  const absl::Status locked = co_await gate.Lock();
  EXPECT_TRUE(locked.ok()) << locked;
  ++locks;
  gate.Unlock();
}

Task<void> PinOnceItMay(SessionGate& gate, std::vector<std::string>& heard) {
  const absl::Status pinnable = co_await gate.Pinnable();
  EXPECT_TRUE(pinnable.ok()) << pinnable;
  heard.emplace_back(gate.TryPin() ? "pinned" : "refused");
}

TEST_F(SessionGateTest, WhoeverIsLetInMayUseTheGateAtOnce) {
  ASSERT_TRUE(gate_.TryPin());
  int locks = 0;
  flows_.group.Spawn(PinOnceItMay(gate_, heard_));
  EXPECT_THAT(heard_, ElementsAre("pinned")) << "no lock is in the way";
  for (int i = 0; i < 5; ++i) flows_.group.Spawn(LockAndUnlock(gate_, locks));
  flows_.group.Spawn(PinOnceItMay(gate_, heard_));
  gate_.Unpin();
  EXPECT_EQ(locks, 0);
  gate_.Unpin();
  EXPECT_EQ(locks, 5);
  EXPECT_THAT(heard_, ElementsAre("pinned", "pinned"));
  EXPECT_EQ(gate_.pins(), 1);
}

TEST_F(SessionGateTest, ALockWhoseDeadlinePassesWhileItWaitsLeavesTheQueueAndLetsPinsIn) {
  ASSERT_TRUE(gate_.TryPin());
  LockUntil("lock", In(absl::Seconds(5)));
  WaitForPins("pin");
  flows_.time.RunFor(absl::Seconds(4));
  EXPECT_THAT(heard_, IsEmpty());
  EXPECT_FALSE(gate_.TryPin());
  flows_.time.RunFor(absl::Seconds(1));
  EXPECT_THAT(heard_, ElementsAre("lock DEADLINE_EXCEEDED", "pin"));
  EXPECT_TRUE(gate_.TryPin());
  gate_.Unpin();
  gate_.Unpin();
  EXPECT_TRUE(gate_.TryLock()) << "nobody was given the lock";
}

TEST_F(SessionGateTest, ALockThatIsCancelledWhileItWaitsLeavesTheQueueAndLetsPinsIn) {
  ASSERT_TRUE(gate_.TryPin());
  CancelSource client_gone;
  LockUntil("lock", client_gone.Never());
  WaitForPins("pin");
  EXPECT_FALSE(gate_.TryPin());
  client_gone.Cancel();
  EXPECT_THAT(heard_, ElementsAre("lock CANCELLED", "pin"));
  EXPECT_TRUE(gate_.TryPin());
  gate_.Unpin();
  gate_.Unpin();
  EXPECT_TRUE(gate_.TryLock());
}

TEST_F(SessionGateTest, ALockThatHasLeftTheQueueIsPassedOverAndPinsStillWaitForTheOthers) {
  ASSERT_TRUE(gate_.TryLock());
  LockUntil("a", In(absl::Seconds(1)));
  Lock("b");
  WaitForPins("pin");
  WaitForPinsUntil("late pin", In(absl::Seconds(2)));
  flows_.time.RunFor(absl::Seconds(1));
  EXPECT_THAT(heard_, ElementsAre("a DEADLINE_EXCEEDED"));
  gate_.Unlock();
  EXPECT_THAT(heard_, ElementsAre("a DEADLINE_EXCEEDED", "b"));
  flows_.time.RunFor(absl::Seconds(1));
  gate_.Unlock();
  EXPECT_THAT(heard_, ElementsAre("a DEADLINE_EXCEEDED", "b", "late pin DEADLINE_EXCEEDED", "pin"));
}

TEST_F(SessionGateTest, WhatIsFreeIsHadWhateverTheDeadline) {
  LockUntil("lock", In(-absl::Seconds(1)));
  LockUntil("late lock", In(-absl::Seconds(1)));
  WaitForPinsUntil("late pin", In(-absl::Seconds(1)));
  gate_.Unlock();
  WaitForPinsUntil("pin", In(-absl::Seconds(1)));
  EXPECT_THAT(heard_, ElementsAre("lock", "late lock DEADLINE_EXCEEDED", "late pin DEADLINE_EXCEEDED", "pin"));
  EXPECT_TRUE(gate_.TryLock());
}

// How often waits were begun and have ended.
struct Waits {
  std::atomic<int> begun{0}, ended{0};
};

Task<void> PinnableWait(SessionGate& gate, Waits& waits) {
  ++waits.begun;
  const absl::Status pinnable = co_await gate.Pinnable();
  EXPECT_TRUE(pinnable.ok()) << pinnable;
  ++waits.ended;
}

Task<void> LockWait(SessionGate& gate, Waits& waits) {
  ++waits.begun;
  const absl::Status locked = co_await gate.Lock();
  EXPECT_TRUE(locked.ok()) << locked;
  ++waits.ended;
}

// Eight threads, each of which goes on only when its own wait has ended: a wakeup that is lost stops it for good.
TEST_F(SessionGateTest, LosesNoWakeupAndExcludesLocksFromPinsUnderManyThreads) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 2000;
  std::atomic<int> stepping{0}, locked{0}, violations{0};
  Waits waits;
  const auto pin = [&] {
    while (!gate_.TryPin()) BlockOn(flows_.executor, PinnableWait(gate_, waits));
    stepping.fetch_add(1);
    if (locked.load() > 0) violations.fetch_add(1);
    stepping.fetch_sub(1);
    gate_.Unpin();
  };
  const auto lock = [&](int what) {
    BlockOn(flows_.executor, LockWait(gate_, waits));
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
  EXPECT_EQ(waits.ended, waits.begun);
  EXPECT_EQ(gate_.pins(), 0);
  EXPECT_TRUE(gate_.TryLock());
}

struct Tally {
  std::atomic<int> locked{0}, late{0}, cancelled{0}, holders{0}, violations{0};
};

Task<void> LockOnce(SessionGate& gate, Tally& tally, Deadline deadline) {
  const absl::Status status = co_await gate.Lock(deadline);
  if (!status.ok()) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) << status;
    ++(absl::IsCancelled(status) ? tally.cancelled : tally.late);
    co_return;
  }
  ++tally.locked;
  if (tally.holders.fetch_add(1) > 0) ++tally.violations;
  tally.holders.fetch_sub(1);
  gate.Unlock();
}

Task<void> PinOnce(SessionGate& gate) {
  while (!gate.TryPin()) {
    const absl::Status pinnable = co_await gate.Pinnable();
    EXPECT_TRUE(pinnable.ok()) << pinnable;
  }
  gate.Unpin();
}

// In each round the lock is let go, the deadline of the first that waits passes, and its client goes, all at about the
// same time, on three threads. A lock that went to nobody would keep the others waiting for good.
TEST(SessionGateRace, ALockThatIsGrantedAsItsDeadlinePassesIsItsWaitersOrIsPassedOn) {
  constexpr int kRounds = 3000;
  ThreadExecutor timers({});
  InlineExecutor executor(timers);  // a wait has begun when Spawn returns, and goes on on the thread that ends it
  TaskQueue cancellers({.name = "cancels"});
  absl::Mutex mu;
  SessionGate gate(mu);
  Tally tally;
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(gate.TryLock()) << "round " << round;
    CancelSource source;
    const SteadyTime due = timers.Now() + absl::Microseconds(round % 100);
    TaskGroup group(executor);
    group.Spawn(LockOnce(gate, tally, source.Until(due)));
    group.Spawn(LockOnce(gate, tally, Deadline()));
    group.Spawn(PinOnce(gate));
    if (round % 2 == 0) cancellers.Post([source]() mutable { source.Cancel(); });
    while (timers.Now() < due) std::this_thread::yield();
    gate.Unlock();
  }
  EXPECT_EQ(tally.locked + tally.late + tally.cancelled, 2 * kRounds);
  EXPECT_GE(tally.locked, kRounds) << "each without a deadline";
  EXPECT_EQ(tally.violations, 0);
  EXPECT_EQ(gate.pins(), 0);
}

}  // namespace
}  // namespace gdn::session_gate_test
