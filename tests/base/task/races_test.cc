// Several threads end the same wait at the same time: a result, a deadline, a cancellation. One must win, and none may
// touch a frame that is gone. For the sanitizers; without them it counts.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/task/resume_on.h"
#include "base/task/signal.h"
#include "base/task/sleep.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "base/task/when_all.h"
#include "base/threads/task_queue.h"
#include "gtest/gtest.h"
#include "tests/base/task/completion.h"
#include "tests/base/task/semaphore.h"
#include "tests/support/simulated_executor.h"

namespace gdn {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 3000;
#else
constexpr int kRounds = 20'000;
#endif

// How waits have ended. The threads' timing decides between the three; their sum is what must be right.
struct Tally {
  std::atomic<int> done{0}, late{0}, cancelled{0}, wrong{0};
  void Count(const absl::Status& status) {
    if (status.ok()) {
      ++done;
    } else if (status.code() == absl::StatusCode::kDeadlineExceeded) {
      ++late;
    } else if (status.code() == absl::StatusCode::kCancelled) {
      ++cancelled;
    } else {
      ++wrong;
    }
  }
  int sum() const { return done + late + cancelled; }
  void Print(const char* what) const {
    std::printf("%s: %d done, %d late, %d cancelled\n", what, done.load(), late.load(), cancelled.load());
  }
};

// A number of spins between 0 and a few microseconds, so that threads meet at all points of each other's way.
void Spin(uint64_t seed) {
  static std::atomic<uint64_t> sink{0};
  for (uint64_t i = seed * 2654435761U % 701; i > 0; --i) sink.fetch_add(1, std::memory_order_relaxed);
}

// One wait whose frame, with the completion and the source in it, is gone as soon as it has ended.
Task<void> OneWait(Executor& executor, TaskQueue& setters, TaskQueue& cancellers, int round, Tally& tally) {
  Completion<int> completion;
  CancelSource source;
  setters.Post([set = completion.setter(), round] {
    Spin(static_cast<uint64_t>(round));
    set(round);
  });
  cancellers.Post([source, round]() mutable {
    Spin(static_cast<uint64_t>(round) * 7);
    source.Cancel();
  });
  const Deadline deadline = source.Until(executor.Now() + absl::Microseconds(round % 60));
  const absl::StatusOr<int> result = co_await completion.Wait(deadline);
  if (result.ok() && *result != round) ++tally.wrong;
  tally.Count(result.status());
}

TEST(Races, ACompletionADeadlineAndACancellationEndAWaitOnce) {
  Tally tally;
  TaskQueue setters({.name = "test-set", .threads = 2});
  TaskQueue cancellers({.name = "test-cancel", .threads = 1});
  ThreadExecutor executor({.name = "test-flow", .threads = 3});
  {
    TaskGroup group(executor);
    for (int round = 0; round < kRounds; ++round) {
      group.Spawn(OneWait(executor, setters, cancellers, round, tally));
      while (group.open() > 100) std::this_thread::yield();
    }
  }
  setters.Drain();
  cancellers.Drain();
  EXPECT_EQ(tally.sum(), kRounds);
  EXPECT_EQ(tally.wrong, 0);
  tally.Print("completions");
}

Task<void> WaitsForSignal(Executor& executor, Signal& signal, Deadline deadline, int round, Tally& tally) {
  const uint64_t seen = signal.count();
  const absl::Status status =
      co_await signal.WaitBeyond(seen, deadline.NotAfter(executor.Now() + absl::Microseconds(20 + round % 200)));
  tally.Count(status);
}

TEST(Races, ASignalADeadlineAndACancellationEndManyWaitsOnce) {
  Tally tally;
  ThreadExecutor executor({.name = "test-flow", .threads = 3});
  Signal signal;
  std::atomic<bool> over{false};
  std::thread raises([&] {
    for (uint64_t i = 0; !over; ++i) {
      signal.Raise();
      Spin(i * 31);
      std::this_thread::yield();
    }
  });
  {
    TaskGroup group(executor);
    for (int round = 0; round < kRounds / 4; ++round) {
      CancelSource source;
      for (int i = 0; i < 4; ++i) group.Spawn(WaitsForSignal(executor, signal, source.Never(), round, tally));
      Spin(static_cast<uint64_t>(round));
      source.Cancel();
      while (group.open() > 100) std::this_thread::yield();
    }
  }
  over = true;
  raises.join();
  EXPECT_EQ(tally.sum(), kRounds / 4 * 4);
  tally.Print("signals");
}

struct Use {
  std::atomic<int64_t> now{0}, most{0};
};

Task<void> TakesPermit(Executor& executor, Semaphore& semaphore, Deadline deadline, int round, Use& use, Tally& tally) {
  const int64_t units = 1 + round % 3;
  const absl::StatusOr<Semaphore::Permit> permit =
      co_await semaphore.Take(units, deadline.NotAfter(executor.Now() + absl::Microseconds(30 + round % 100)));
  tally.Count(permit.status());
  if (!permit.ok()) co_return;
  const int64_t now = use.now.fetch_add(units) + units;
  int64_t most = use.most;
  while (now > most && !use.most.compare_exchange_weak(most, now)) {
  }
  co_await ResumeOn(executor);
  use.now -= units;
}

TEST(Races, ASemaphoreLosesAndInventsNoUnits) {
  Tally tally;
  Use use;
  ThreadExecutor executor({.name = "test-flow", .threads = 4});
  Semaphore semaphore(4);
  {
    TaskGroup group(executor);
    for (int round = 0; round < kRounds; ++round) {
      CancelSource source;
      group.Spawn(TakesPermit(executor, semaphore, source.Never(), round, use, tally));
      if (round % 3 == 0) source.Cancel();
      while (group.open() > 50) std::this_thread::yield();
    }
  }
  EXPECT_EQ(tally.sum(), kRounds);
  EXPECT_EQ(semaphore.free(), 4);
  EXPECT_LE(use.most, 4);
  tally.Print("semaphores");
}

// A source that ends the wait while it is being armed, and is still inside its lock when the flow could go on.
class SlowSource final : public Waiter {
 public:
  explicit SlowSource(std::thread& ends) : Waiter(Deadline()), ends_(ends) {}
  // True if the flow went on only after the source had released its lock. Then the flow may destroy the source.
  bool await_resume() {
    Finish();
    return left_;
  }

 private:
  bool Enlist() override {
    std::atomic<bool> ended{false};
    ends_ = std::thread([this, &ended] {
      const std::lock_guard lock(mu_);
      End(WaitEnd::kDone);
      ended = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      left_ = true;
    });
    while (!ended) std::this_thread::yield();
    return true;
  }
  void Delist() override { const std::lock_guard lock(mu_); }

  std::thread& ends_;
  std::mutex mu_;
  std::atomic<bool> left_{false};
};

Task<bool> WaitsForSlowSource(std::thread& ends) { co_return co_await SlowSource(ends); }

TEST(Races, AWaitThatEndsWhileItIsArmedGoesOnAfterItsSourceHasGivenUpTheLock) {
  ThreadExecutor executor({.name = "test-flow", .threads = 1});
  std::thread ends;
  EXPECT_TRUE(BlockOn(executor, WaitsForSlowSource(ends)));
  ends.join();
}

// The semaphore lies in the frame of the flow that takes the last permit, and is gone while the permit that was given
// back for it is still on its way out.
Task<void> OwnsItsSemaphore(TaskQueue& givers) {
  Semaphore semaphore(1);
  auto permit = std::make_shared<Semaphore::Permit>();
  EXPECT_TRUE(semaphore.TryTake(1, permit.get()));
  givers.Post([permit] { permit->GiveBack(); });
  const absl::StatusOr<Semaphore::Permit> last = co_await semaphore.Take(1);
  EXPECT_TRUE(last.ok());
}

TEST(Races, ASemaphoreMayGoWithTheFlowThatItServedLast) {
  TaskQueue givers({.name = "test-give", .threads = 2});
  ThreadExecutor executor({.name = "test-flow", .threads = 2});
  TaskGroup group(executor);
  for (int round = 0; round < kRounds; ++round) {
    group.Spawn(OwnsItsSemaphore(givers));
    while (group.open() > 20) std::this_thread::yield();
  }
}

// Executors, groups and setters come and go while results arrive from other threads.
TEST(Races, AnExecutorMayGoAsSoonAsItsGroupsHaveEnded) {
  TaskQueue setters({.name = "test-set", .threads = 2});
  TaskQueue cancellers({.name = "test-cancel", .threads = 1});
  Tally tally;
  for (int round = 0; round < kRounds / 20; ++round) {
    ThreadExecutor executor({.name = "test-flow", .threads = 1});
    TaskGroup group(executor);
    group.Spawn(OneWait(executor, setters, cancellers, round, tally));
  }
  setters.Drain();
  cancellers.Drain();
  EXPECT_EQ(tally.sum(), kRounds / 20);
}

// The same on one thread, where a seed chooses the order: a failure repeats.
Task<void> SetsAt(SteadyTime time, Completion<int>::Setter set) {
  const absl::Status slept = co_await SleepUntil(time);
  EXPECT_TRUE(slept.ok());
  set(1);
}
Task<void> CancelsAt(SteadyTime time, CancelSource source) {
  const absl::Status slept = co_await SleepUntil(time);
  EXPECT_TRUE(slept.ok());
  source.Cancel();
}
Task<void> SimulatedWait(SimulatedExecutor& executor, TaskGroup& group, Tally& tally) {
  Completion<int> completion;
  CancelSource source;
  const SteadyTime now = executor.Now();
  const auto soon = [&executor, now] { return now + absl::Seconds(static_cast<int64_t>(executor.Choose(3))); };
  group.Spawn(SetsAt(soon(), completion.setter()));
  group.Spawn(CancelsAt(soon(), source));
  const Deadline deadline = source.Until(soon());
  const absl::StatusOr<int> result = co_await completion.Wait(deadline);
  tally.Count(result.status());
}

TEST(Races, EveryOrderOfTheThreeEndsAWaitOnce) {
  Tally tally;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SimulatedExecutor executor(seed);
    TaskGroup group(executor);
    group.Spawn(SimulatedWait(executor, group, tally));
  }
  EXPECT_EQ(tally.sum(), 2000);
  // These do not depend on timing: the seeds are always the same.
  EXPECT_GT(tally.done, 100);
  EXPECT_GT(tally.late, 100);
  EXPECT_GT(tally.cancelled, 100);
  tally.Print("simulated");
}

}  // namespace
}  // namespace gdn
