// Which of the sessions that are due for a checkpoint get the few copies that there may be at a time.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::checkpoint_schedule_test {
namespace {

constexpr int kMoreThanCopies = 6;

void WaitUntilDurable(const Session& session) {
  while (session.undurable().any) absl::SleepFor(absl::Milliseconds(1));
}

TEST(CheckpointSchedule, SessionsInUseDoNotKeepOthersFromTheirCopies) {
  TieredWorld world({.device_sessions = 8, .disk = true, .policy = {.every = absl::Hours(1)}});
  std::vector<std::shared_ptr<Session>> due;
  std::vector<SessionPin> pins;  // each of a call that takes its time
  for (int i = 0; i < kMoreThanCopies; ++i) {
    due.push_back(world.Make(std::to_string(i), 1));
    GDN_ASSERT_OK_AND_ASSIGN(SessionPin pin, world.PinOne(due.back()));
    pins.push_back(std::move(pin));
  }
  const auto idle = world.Make("idle", 1);
  due.push_back(idle);
  world.checkpointer.Sweep(due, SteadyNow() + absl::Hours(2));
  WaitUntilDurable(*idle);
  EXPECT_EQ(world.checkpointer.made(), 1);
  pins.clear();
  for (const auto& session : due) WaitUntilDurable(*session);
  EXPECT_EQ(world.checkpointer.failed(), 0);
}

TEST(CheckpointSchedule, OneWhoseTurnComesWhileAllCopiesAreOutLetsStepsGoOnAndComesLater) {
  TieredWorld world({.device_sessions = 8, .disk = true, .policy = {.every = absl::Hours(1)}});
  absl::Notification release;
  world.disk.OnStore([&release](const StateKey&) { release.WaitForNotification(); });
  const auto busy = world.Make("busy", 1);
  GDN_ASSERT_OK_AND_ASSIGN(SessionPin pin, world.PinOne(busy));
  std::vector<std::shared_ptr<Session>> due = {busy};
  for (int i = 0; i < kMoreThanCopies; ++i) due.push_back(world.Make(std::to_string(i), 1));
  world.checkpointer.Sweep(due, SteadyNow() + absl::Hours(2));
  const auto held = [&due] {
    int count = 0;
    for (const auto& session : due) count += session->gate().held();
    return count;
  };
  while (held() < 4) absl::SleepFor(absl::Milliseconds(1));
  pin.Release();
  EXPECT_TRUE(world.Write(busy, 2).ok()) << "a step waits for no copy of another session";
  EXPECT_EQ(held(), 4);
  release.Notify();
  for (const auto& session : due) WaitUntilDurable(*session);
  EXPECT_EQ(*world.Read(busy), 2);
}

}  // namespace
}  // namespace gdn::checkpoint_schedule_test
