// Sets the wall clock while there are sessions, and during a server's shutdown. The program has its own clock_gettime
// and gettimeofday, which Abseil's waits call. They change the wall clock and no other.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>  // NOLINT(modernize-deprecated-headers): POSIX's, for clock_gettime
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/open_count.h"
#include "base/threads/stop_signal.h"
#include "server/batcher/batcher.h"
#include "server/session/housekeeper.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace {
std::atomic<int64_t> wall_ahead_s{0};
}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += wall_ahead_s.load();
  return result;
}

extern "C" int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now{};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return result;
}

namespace gdn::wall_clock_test {
namespace {

constexpr absl::Duration kJump = absl::Hours(1000);

class WallClock : public ::testing::Test {
 protected:
  WallClock() { wall_ahead_s = 0; }
  ~WallClock() override { wall_ahead_s = 0; }

  static void Jump(absl::Duration by) {
    const absl::Time before = absl::Now();
    wall_ahead_s += absl::ToInt64Seconds(by);
    const absl::Duration jumped = absl::Now() - before;
    ASSERT_LT(absl::AbsDuration(jumped - by), absl::Hours(1)) << "this program does not set Abseil's clock";
  }
  // Makes it move, and waits until that is durable by the policy of time.
  void MoveAndAwaitCheckpoint(const std::shared_ptr<Session>& session, float mark) {
    ASSERT_TRUE(world_.Write(session, mark).ok());
    while (session->undurable().any) absl::SleepFor(absl::Milliseconds(1));
  }

  TieredWorld world_{{.device_sessions = 3, .disk = true, .policy = {.every = absl::Milliseconds(1)}}};
};

TEST_F(WallClock, AJumpForwardEndsNoSession) {
  SessionInit init = world_.Init("a");
  init.idle_ttl = absl::Hours(1);
  init.max_lifetime = absl::Hours(2);
  GDN_ASSERT_OK_AND_ASSIGN(const auto a, world_.TryMake(init));
  const auto b = world_.Make("b");
  ASSERT_NO_FATAL_FAILURE(Jump(kJump));
  Housekeeper housekeeper(world_.manager, world_.checkpointer, world_.residency, world_.tiers, absl::Milliseconds(1));
  // Each was made after a look at who is to end.
  for (const float mark : {1.0f, 2.0f, 3.0f}) MoveAndAwaitCheckpoint(b, mark);
  EXPECT_TRUE(world_.manager.Find("", "a").ok());
  EXPECT_EQ(world_.manager.expired(), 0);
}

TEST_F(WallClock, AJumpBackStopsNoCheckpoint) {
  const auto a = world_.Make("a");
  Housekeeper housekeeper(world_.manager, world_.checkpointer, world_.residency, world_.tiers, absl::Milliseconds(1));
  MoveAndAwaitCheckpoint(a, 1);
  ASSERT_NO_FATAL_FAILURE(Jump(-kJump));
  MoveAndAwaitCheckpoint(a, 2);
  EXPECT_EQ(*world_.Read(a), 2);
}

TEST_F(WallClock, AJumpBackStopsNoRetriesOfATier) {
  FakeTier disk("disk", /*durable=*/true, /*limit_bytes=*/0);
  TierStack tiers({&disk}, {.retry_after = absl::Milliseconds(1)});
  disk.FailStores(Unavailable("disk"));
  for (const char* id : {"a", "b"}) EXPECT_FALSE(tiers.Park(Key(id), MakeVersion(1)).ok());
  disk.FailStores(absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Jump(-kJump));
  while (!tiers.Park(Key("a"), MakeVersion(1)).ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(tiers.PlaceOf(Key("a")), "disk");
}

// A wall's clock that the system sees 1000 hours back, after a wait began, keeps no server from its end.
constexpr absl::Duration kSoon = absl::Milliseconds(1);

TEST_F(WallClock, AJumpBackDelaysNoEndOfFinalCheckpoints) {
  const auto a = world_.Make("a", 1);
  absl::Notification go_on;
  world_.disk.OnStore([&](const StateKey&) { go_on.WaitForNotification(); });  // a store that hangs
  ASSERT_NO_FATAL_FAILURE(Jump(kJump));
  EXPECT_EQ(world_.checkpointer.CheckpointAll({a}, kSoon), 1);
  go_on.Notify();
  EXPECT_EQ(world_.checkpointer.CheckpointAll({a}, absl::InfiniteDuration()), 0);
}

TEST_F(WallClock, AJumpBackDelaysNoEndOfTheWaitForTransfers) {
  OpenCount transfers;
  OpenCount::Hold open = transfers.Begin();
  ASSERT_NO_FATAL_FAILURE(Jump(kJump));
  EXPECT_FALSE(transfers.WaitForNone(kSoon));
  open = OpenCount::Hold();
  EXPECT_TRUE(transfers.WaitForNone(absl::InfiniteDuration()));
}

TEST_F(WallClock, AJumpBackDelaysNoEndOfTheWaitForSteps) {
  Batcher batcher(*world_.backend, world_.health, {});
  EngineBlocker engine(batcher);
  EngineGate behind;  // work that waits
  behind.open.count_down();
  behind.Post(batcher);
  ASSERT_NO_FATAL_FAILURE(Jump(kJump));
  EXPECT_FALSE(batcher.Drain(kSoon));
  engine.Release();
  EXPECT_TRUE(batcher.Drain(absl::InfiniteDuration()));
}

TEST_F(WallClock, AJumpBackDelaysNoSignal) {
  StopSignal stop;
  ASSERT_NO_FATAL_FAILURE(Jump(kJump));
  EXPECT_FALSE(stop.GivenWithin(kSoon));
  std::thread gives([&stop] { stop.Give(); });
  EXPECT_TRUE(stop.GivenWithin(absl::InfiniteDuration())) << "no overflow";
  gives.join();
}

}  // namespace
}  // namespace gdn::wall_clock_test
