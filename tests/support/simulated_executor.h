// An executor for tests: one thread, an order that a seed chooses, and a clock that moves only when nothing can run.
//
// The same seed and the same program give the same order of events and the same times, so a test that fails for a seed
// fails again for it. A sleep of an hour takes no time. If flows wait and nothing can ever run, a blocking wait
// (TaskGroup::Wait, BlockOn) ends the process with a message.
// Thread safety: none; use it only from the thread that made it, or the process ends with a message. Ownership: the
// task groups on it must have ended before it.
//
//   for (uint64_t seed = 0; seed < 1000; ++seed) {
//     SimulatedExecutor executor(seed);
//     EXPECT_OK(BlockOn(executor, Transfer(parts, executor)));
//   }
#pragma once

#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/task/executor.h"
#include "base/task/timers.h"
#include "base/threads/steady_clock.h"

namespace gdn {

class SimulatedExecutor final : public Executor {
 public:
  explicit SimulatedExecutor(uint64_t seed) : random_(seed) {}
  ~SimulatedExecutor() override;
  SimulatedExecutor(const SimulatedExecutor&) = delete;
  SimulatedExecutor& operator=(const SimulatedExecutor&) = delete;

  // Begins one hour after SteadyTime's zero. Moves to the next timer when no flow can run.
  SteadyTime Now() const override { return now_; }
  void Post(Flow& flow) override;
  void SetTimer(Timer& timer) override;
  void ClearTimer(Timer& timer) override;
  void BlockUntil(absl::FunctionRef<bool()> over, absl::FunctionRef<void()> block) override;

  // Runs one flow until it waits, after the clock has moved if need be. False if nothing can run.
  bool RunOne();
  // Runs until only timers after this time are left, and sets the clock to it.
  void RunFor(absl::Duration time);
  // Runs until nothing can run. Returns at once if flows only wait for each other.
  void RunUntilIdle();
  // Returns a random number from the executor's seed, 0 .. below - 1, for a test's own choices. `below` is above 0.
  uint64_t Choose(uint64_t below) { return random_() % below; }

 private:
  void CheckThread() const;
  bool RunReady();

  const std::thread::id thread_ = std::this_thread::get_id();
  std::mt19937_64 random_;
  SteadyTime now_ = SteadyTime::FromNanos(3'600'000'000'000);
  std::vector<Flow*> ready_;
  Timers timers_;
};

}  // namespace gdn
