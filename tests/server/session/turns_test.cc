// One caller's calls beside another's: whose sessions come back, make room and are made durable first.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::turns_test {
namespace {

constexpr int kMany = 60;
constexpr int kNotLast = 50;  // a thread that has the other's may be kept from its processor for a while

// Records events of all threads in order.
class Order {
 public:
  void Note(std::string what) {
    absl::MutexLock lock(&mu_);
    noted_.push_back(std::move(what));
  }
  // How many came before it; as many as there are where it did not come.
  int64_t Before(const std::string& what) const {
    absl::MutexLock lock(&mu_);
    return std::ranges::find(noted_, what) - noted_.begin();
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> noted_ ABSL_GUARDED_BY(mu_);
};

class Turns : public ::testing::Test {
 protected:
  std::shared_ptr<Session> MakeOf(TieredWorld& world, const std::string& id, const ByteAccountPtr& account) {
    SessionInit init = world.Init(id);
    init.account = account;
    auto session = world.TryMake(std::move(init)).value();
    EXPECT_TRUE(world.Write(session, 1).ok());
    return session;
  }
  std::vector<std::shared_ptr<Session>> MakeManyOf(TieredWorld& world, int count, const ByteAccountPtr& account) {
    std::vector<std::shared_ptr<Session>> made;
    for (int i = 0; i < count; ++i) made.push_back(MakeOf(world, "many" + std::to_string(i), account));
    return made;
  }
  static ByteAccountPtr Account(TieredWorld& world, const std::string& address) {
    return world.ledger.AccountOf("", "ipv4:" + address + ":1");
  }

  Order order_;
};

TEST_F(Turns, ManyCallsOfOneCallerDoNotKeepAnothersStatesAway) {
  absl::Notification go, end;  // outlive the world's threads, which wait for them
  TieredWorld world({.device_sessions = kMany + 3, .host = false, .disk = true});
  const ByteAccountPtr many = Account(world, "10.0.0.1"), few = Account(world, "10.0.0.2");
  const auto sessions = MakeManyOf(world, kMany, many);
  const auto other = MakeOf(world, "other", few);
  // All of them leave the device.
  ASSERT_TRUE(world.Reserve({.dims = world.spec.dims, .count = 2 * (kMany + 3)}, many).ok());
  world.disk.OnLoad([&](const StateKey& key) { order_.Note(key.id); });
  // One IO thread alone, so that what it begins is what it notes.
  absl::BlockingCounter busy(2);
  for (absl::Notification* const until : {&go, &end}) {
    world.io.Post([&busy, until] {
      busy.DecrementCount();
      until->WaitForNotification();
    });
  }
  busy.Wait();
  std::vector<Answer<Residency::PinResults>> pins(kMany + 1);
  for (size_t i = 0; i < kMany; ++i) pins[i].Start(world.flows, world.residency.Pin({sessions[i]}, Deadline()));
  pins[kMany].Start(world.flows, world.residency.Pin({other}, Deadline()));
  while (world.io.waiting() < kMany + 1) absl::SleepFor(absl::Milliseconds(1));
  go.Notify();
  for (auto& pin : pins) EXPECT_TRUE(pin.Wait()[0].ok()) << pin.Wait()[0].status();
  end.Notify();
  EXPECT_LE(order_.Before("other"), 2) << "behind all that was there before";
}

TEST_F(Turns, ALargeCallDoesNotKeepTheThreadThatMakesRoom) {
  TieredWorld world({.device_sessions = 20, .host = false, .disk = true});
  const ByteAccountPtr large = Account(world, "10.0.0.1"), small = Account(world, "10.0.0.2");
  MakeManyOf(world, 20, large);
  absl::Notification both_asked;
  world.disk.OnStore([&](const StateKey&) {
    both_asked.WaitForNotification();
    absl::SleepFor(absl::Milliseconds(10));  // a disk that takes its time, longer than a turn
  });
  Answer<absl::StatusOr<RoomClaims>> of_large, of_small;
  const auto reserve = [&](const std::string& who, int32_t count, const ByteAccountPtr& account,
                           Answer<absl::StatusOr<RoomClaims>>& answer) {
    world.flows.Spawn(world.residency.Reserve({.dims = world.spec.dims, .count = count}, account, Deadline()),
                      [this, who, &answer](absl::StatusOr<RoomClaims> claims) {
                        order_.Note(who);
                        answer.Give(std::move(claims));
                      });
  };
  reserve("large", 2 * 18, large, of_large);
  reserve("small", 2, small, of_small);
  both_asked.Notify();
  EXPECT_TRUE(of_small.Wait().ok()) << of_small.Wait().status();
  EXPECT_TRUE(of_large.Wait().ok()) << of_large.Wait().status();
  EXPECT_EQ(order_.Before("small"), 0);
}

TEST_F(Turns, SessionsOfTheCallerThatHoldsMostForItsShareGiveWayFirst) {
  TieredWorld world({.device_sessions = 6});
  const ByteAccountPtr greedy = Account(world, "10.0.0.1"), modest = Account(world, "10.0.0.2");
  const auto first = MakeOf(world, "first", modest);  // the least recently used
  const auto greedys = MakeManyOf(world, 5, greedy);
  const auto another = MakeOf(world, "another", greedy);
  EXPECT_EQ(world.PlaceOf(first), "device");
  EXPECT_EQ(world.PlaceOf(greedys[0]), "host");
  const auto second = MakeOf(world, "second", modest);
  const auto third = MakeOf(world, "third", modest);
  EXPECT_EQ(world.PlaceOf(first), "device");
  EXPECT_EQ(world.PlaceOf(greedys[2]), "host");
  // Even now: the least recently used goes, whosoever it is.
  MakeOf(world, "fourth", modest);
  EXPECT_EQ(world.PlaceOf(first), "host");
}

TEST_F(Turns, ACallWhoseClientHasGoneMovesNobodyAndFetchesNothing) {
  TieredWorld world({.device_sessions = 1, .host = false, .disk = true});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  const int64_t loads = world.disk.usage().loads;
  CancelSource client_gone;
  client_gone.Cancel();
  const Deadline gone = client_gone.Never();
  const RoomRequest room{.dims = world.spec.dims, .count = 2};
  for (const absl::Status& status : {world.Pin({a}, gone)[0].status(), world.LockResident(a, gone).status(),
                                     world.Reserve(room, a->account(), gone).status(), world.Capture(a, gone).status(),
                                     world.Checkpoint(a, "", gone).status(), world.Restore(a, "", gone)}) {
    ExpectError(status, absl::StatusCode::kCancelled, reason::kCallCancelled);
  }
  EXPECT_EQ(world.PlaceOf(b), "device");
  EXPECT_EQ(world.disk.usage().loads, loads);
}

TEST_F(Turns, IdleSessionsLeaveBeforeTheirRoomIsNeeded) {
  TieredWorld world({.device_sessions = 4});
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(world.Make(std::to_string(i), static_cast<float>(i + 1)));
  world.residency.MoveIdleAhead();
  EXPECT_TRUE(world.Read(sessions[0]).ok());
  EXPECT_EQ(world.room.sessions(), 4) << "they were used a moment ago";
  world.clock.Advance(absl::Minutes(1));
  const SteadyTime patience = SteadyNow() + absl::Seconds(60);
  while (world.room.sessions() == 4 && SteadyNow() < patience) {
    world.residency.MoveIdleAhead();
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(world.room.sessions(), 3);
  EXPECT_EQ(world.PlaceOf(sessions[1]), "host");
  EXPECT_FALSE(world.room.WantsAhead()) << "the others stay";
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(*world.Read(sessions[i]), static_cast<float>(i + 1));
}

TEST_F(Turns, CheckpointsThatAreDueTakeTurns) {
  TieredWorld world({.device_sessions = kMany + 1, .disk = true, .policy = {.every = absl::Hours(1)}});
  const ByteAccountPtr many = Account(world, "10.0.0.1"), few = Account(world, "10.0.0.2");
  std::vector<std::shared_ptr<Session>> due = MakeManyOf(world, kMany, many);
  due.push_back(MakeOf(world, "other", few));
  absl::Notification go;
  world.disk.OnStore([&](const StateKey& key) {
    go.WaitForNotification();
    order_.Note(key.id);
    absl::SleepFor(absl::Milliseconds(3));
  });
  world.checkpointer.Sweep(due, SteadyNow() + absl::Hours(2));
  go.Notify();
  for (const auto& session : due) {
    while (session->undurable().any) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_LE(order_.Before("other"), kNotLast);
}

TEST_F(Turns, CheckpointsThatWereAskedForTakeTurns) {
  TieredWorld world({.device_sessions = kMany + 1, .disk = true});
  const ByteAccountPtr many = Account(world, "10.0.0.1"), few = Account(world, "10.0.0.2");
  const auto sessions = MakeManyOf(world, kMany, many);
  const auto other = MakeOf(world, "other", few);
  absl::Notification go;
  world.disk.OnStore([&](const StateKey& key) {
    go.WaitForNotification();
    order_.Note(key.id);
    absl::SleepFor(absl::Milliseconds(3));
  });
  std::vector<Answer<absl::StatusOr<CheckpointResult>>> made(kMany + 1);
  for (size_t i = 0; i < kMany; ++i) made[i].Start(world.flows, world.checkpointer.Checkpoint(sessions[i], ""));
  made[kMany].Start(world.flows, world.checkpointer.Checkpoint(other, ""));
  while (!other->gate().held()) absl::SleepFor(absl::Milliseconds(1));  // its copy is made
  go.Notify();
  for (auto& answer : made) EXPECT_TRUE(answer.Wait().ok());
  EXPECT_LE(order_.Before("other"), kNotLast);
}

}  // namespace
}  // namespace gdn::turns_test
