#include "server/session/room/residency.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "base/task/deadline.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::residency_test {
namespace {

// Sessions "0", "1", .. with the marks 1, 2, ..
std::vector<std::shared_ptr<Session>> MakeMarked(TieredWorld& world, int count) {
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < count; ++i) sessions.push_back(world.Make(std::to_string(i), static_cast<float>(i + 1)));
  return sessions;
}

TEST(Residency, SessionsThatGaveWayComeBackAsTheyWere) {
  TieredWorld world({.device_sessions = 2});
  const std::vector<std::shared_ptr<Session>> sessions = MakeMarked(world, 7);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < sessions.size(); ++i) {
      GDN_ASSERT_OK_AND_ASSIGN(const auto mark, world.Read(sessions[i]));
      EXPECT_EQ(mark, static_cast<float>(i + 1));
      EXPECT_EQ(sessions[i]->Layers()[1].progress.token_count, 1);
      EXPECT_LE(world.store.used_bytes(), 2 * world.SessionBytes());
    }
  }
  const ResidencyCounters counters = world.residency.counters();
  EXPECT_GE(counters.evictions, 20);
  EXPECT_EQ(counters.failures, 0);
  EXPECT_EQ(world.room.sessions(), 2);
  EXPECT_EQ(world.host.usage().sessions, 5);
}

TEST(Residency, TheLeastRecentlyUsedOneGivesWay) {
  TieredWorld world({.device_sessions = 3});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  const auto c = world.Make("c");
  ASSERT_TRUE(world.Read(a).ok());
  const auto d = world.Make("d");
  EXPECT_EQ(world.PlaceOf(b), "host");
  ASSERT_TRUE(world.Read(c).ok());
  ASSERT_TRUE(world.Read(b).ok());
  EXPECT_EQ(world.PlaceOf(a), "host");
  EXPECT_EQ(world.PlaceOf(b), "device");
  EXPECT_EQ(world.PlaceOf(c), "device");
  EXPECT_EQ(world.PlaceOf(d), "device");
}

TEST(Residency, PinnedAndLockedSessionsStayWhereTheyAre) {
  TieredWorld world({.device_sessions = 3});
  const auto pinned = world.Make("pinned");
  const auto locked = world.Make("locked");
  ASSERT_TRUE(world.Write(pinned, 1).ok());
  ASSERT_TRUE(world.Write(locked, 2).ok());
  GDN_ASSERT_OK_AND_ASSIGN(const auto pin, world.PinOne(pinned));
  SessionLease lease = locked->TryLock();
  ASSERT_TRUE(lease.valid());
  for (int i = 0; i < 5; ++i) world.Make(std::to_string(i));
  EXPECT_EQ(world.PlaceOf(pinned), "device");
  EXPECT_EQ(world.PlaceOf(locked), "device");
  lease.Hold();
  world.Make("next");
  EXPECT_EQ(world.PlaceOf(locked), "device") << "a copy of it is being written";
  EXPECT_EQ(*TieredWorld::Read(pin), 1);
}

TEST(Residency, ACallOfMoreThanFitsIsRefusedAtOnceAndOthersGoOn) {
  TieredWorld world({.device_sessions = 2});
  const std::vector<std::shared_ptr<Session>> sessions = MakeMarked(world, 3);
  // One that waited for room would find that its deadline has passed.
  for (const auto& order : {std::vector{0, 1, 2}, std::vector{2, 0, 1}, std::vector{1, 2, 0}}) {
    std::vector<std::shared_ptr<Session>> call;
    for (const int i : order) call.push_back(sessions[static_cast<size_t>(i)]);
    const int64_t loads = world.host.usage().loads;
    const auto pins = world.Pin(call, SteadyNow() + absl::Seconds(9));
    EXPECT_EQ(world.host.usage().loads, loads) << "what finds no room is not fetched";
    int refused = 0;
    for (const auto& pin : pins) {
      if (pin.ok()) continue;
      ++refused;
      ExpectError(pin.status(), absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
    }
    EXPECT_EQ(refused, 1);
  }
  for (size_t i = 0; i < sessions.size(); ++i) EXPECT_EQ(*world.Read(sessions[i]), static_cast<float>(i + 1));
}

TEST(Residency, ASessionThatCanNeverFitIsRefused) {
  TieredWorld world({.layers = 2, .device_sessions = 2});
  const auto a = world.Make("a");
  SessionInit init = world.Init("large");
  init.spec = OperatorSessionSpec(5);
  const auto refused = world.TryMake(init);
  EXPECT_EQ(ErrorReason(refused.status()), reason::kStateBudgetExhausted);
  EXPECT_EQ(world.manager.size(), 1u);
  EXPECT_EQ(world.PlaceOf(a), "device") << "nobody gives way for nothing";
}

TEST(Residency, CallsThatEachNeedMostOfTheDeviceTakeTurns) {
  TieredWorld world({.device_sessions = 3});
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(world.Make(std::to_string(i)));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Each leaves another one out; all overlap.
      std::vector<std::shared_ptr<Session>> call;
      for (size_t i = 1; i < 4; ++i) call.push_back(sessions[(t + i) % 4]);
      for (int round = 0; round < 50; ++round) {
        for (const auto& pin : world.Pin(call)) failures += pin.ok() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST(Residency, AVictimThatNoTierTakesStaysUsable) {
  TieredWorld world({.device_sessions = 1, .host = false, .disk = true});
  const auto a = world.Make("a", 7);
  world.disk.FailStores(Unavailable("disk"));
  const auto refused = world.TryMake(world.Init("b"));
  ExpectError(refused.status(), absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_EQ(world.PlaceOf(a), "device");
  EXPECT_EQ(*world.Read(a), 7);
  ASSERT_TRUE(world.Write(a, 8).ok());
  world.disk.FailStores(absl::OkStatus());
  GDN_ASSERT_OK_AND_ASSIGN(const auto b, world.TryMake(world.Init("b")));
  EXPECT_EQ(world.PlaceOf(a), "disk");
  EXPECT_EQ(*world.Read(a), 8);
}

TEST(Residency, FullTiersRefuseANewcomerAndLeaveTheOthers) {
  TieredWorld world({.device_sessions = 1, .host_bytes = 1});
  const auto a = world.Make("a", 7);
  const auto refused = world.TryMake(world.Init("b"));
  ExpectError(refused.status(), absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  EXPECT_EQ(world.manager.size(), 1u);
  EXPECT_EQ(*world.Read(a), 7);
}

TEST(Residency, AStateThatCannotBeReadFailsItsOwnRowAlone) {
  TieredWorld world({.device_sessions = 2, .host = false, .disk = true});
  const std::vector<std::shared_ptr<Session>> sessions = MakeMarked(world, 4);
  world.disk.Damage(sessions[0]->key());
  for (int i = 0; i < 3; ++i) {
    const auto pins = world.Pin({sessions[0], sessions[1]});
    EXPECT_EQ(pins[0].status().code(), absl::StatusCode::kDataLoss);
    ASSERT_TRUE(pins[1].ok()) << pins[1].status();
    EXPECT_EQ(*TieredWorld::Read(*pins[1]), 2);
  }
  EXPECT_FALSE(sessions[0]->resident());
  EXPECT_TRUE(world.Delete("0").ok()) << "it can still be ended";
  EXPECT_GE(world.residency.counters().failures, 3);
}

TEST(Residency, RoomForAStateThatCannotBeReadIsThereAgainWhenItsCallIsAnswered) {
  TieredWorld world({.device_sessions = 1, .host = false, .disk = true});
  const std::vector<std::shared_ptr<Session>> sessions = MakeMarked(world, 2);
  world.disk.Damage(sessions[0]->key());
  Answer<absl::Status> room;
  world.flows.Spawn(world.residency.Pin({sessions[0]}, Deadline()), [&](const Residency::PinResults& pins) {
    EXPECT_EQ(pins[0].status().code(), absl::StatusCode::kDataLoss);
    room.Give(world.room.TryClaim({.dims = world.spec.dims, .count = 2}).status());
  });
  EXPECT_TRUE(room.Wait().ok()) << room.Wait();
}

TEST(Residency, RoomThatIsTakenByStatesOnTheirWayIsWaitedFor) {
  TieredWorld world({.device_sessions = 1, .host = false, .disk = true});
  const std::vector<std::shared_ptr<Session>> sessions = MakeMarked(world, 2);
  world.disk.Damage(sessions[0]->key());
  absl::Notification loading, go;
  world.disk.OnLoad([&](const StateKey&) {
    loading.Notify();
    go.WaitForNotification();
  });
  Answer<Residency::PinResults> pins;
  pins.Start(world.flows, world.residency.Pin({sessions[0]}, Deadline()));
  loading.WaitForNotification();
  Answer<absl::StatusOr<RoomClaims>> claims;
  claims.Start(world.flows,
               world.residency.Reserve({.dims = world.spec.dims, .count = 2}, sessions[1]->account(), Deadline()));
  absl::SleepFor(absl::Milliseconds(20));  // long enough for a refusal
  EXPECT_FALSE(claims.given());
  go.Notify();
  EXPECT_TRUE(claims.Wait().ok()) << claims.Wait().status();
  EXPECT_FALSE(pins.Wait()[0].ok());
}

TEST(Residency, NothingIsCopiedOnceTheDeviceHasFailed) {
  TieredWorld world({.device_sessions = 1});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  const absl::Status failed = MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "gone");
  world.health.Report(failed).IgnoreError();
  EXPECT_EQ(ErrorReason(world.Pin({a})[0].status()), reason::kDeviceFailed);
  EXPECT_EQ(world.PlaceOf(a), "host");
  EXPECT_EQ(world.PlaceOf(b), "device");
  EXPECT_TRUE(world.Delete("a").ok());
  EXPECT_TRUE(world.Delete("b").ok());
}

TEST(Residency, ACallWhoseDeadlineHasPassedDoesNotMoveStates) {
  TieredWorld world({.device_sessions = 1});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  const auto late = world.Pin({a}, SteadyNow() - absl::Seconds(1));
  ExpectError(late[0].status(), absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded);
  EXPECT_EQ(world.PlaceOf(b), "device");
  EXPECT_TRUE(world.Pin({b}, SteadyNow() - absl::Seconds(1))[0].ok()) << "what is there needs no time";
}

TEST(Residency, NothingIsFetchedForACallWhoseDeadlineHasPassed) {
  TieredWorld world({.device_sessions = 1, .host = false, .disk = true});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  std::atomic<int> loads = 0;
  world.disk.OnLoad([&](const StateKey&) { ++loads; });
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.Pin({a}, SteadyNow() - absl::Seconds(1))[0].status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.LockResident(a, SteadyNow() - absl::Seconds(1)).status()));
  EXPECT_EQ(loads, 0);
}

TEST(Residency, OnceItsDeadlineHasPassedACallMovesNobodyAway) {
  TieredWorld world({.device_sessions = 3, .host = false, .disk = true});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  const auto c = world.Make("c");
  const SteadyTime deadline = SteadyNow() + absl::Milliseconds(20);
  int stores = 0;  // of the residency thread, before whose answer it is not read
  world.disk.OnStore([&](const StateKey&) {
    ++stores;
    absl::SleepFor(deadline - SteadyNow());  // a slow tier
  });
  const auto claims = world.Reserve({.dims = world.spec.dims, .count = 6}, a->account(), deadline);
  EXPECT_TRUE(absl::IsDeadlineExceeded(claims.status())) << claims.status();
  EXPECT_LE(stores, 1);
  EXPECT_EQ(world.PlaceOf(c), "device");
}

TEST(Residency, CopiesForOtherCallsDoNotKeepStepsFromTheirStates) {
  TieredWorld world({.device_sessions = 1, .host = false, .disk = true});
  const auto x = world.Make("x", 1);
  const auto y = world.Make("y", 2);
  const auto z = world.Make("z", 3);
  const auto last = world.Make("last", 4);
  absl::Notification go_on;
  absl::BlockingCounter begun(2);
  world.disk.OnLoad([&](const StateKey& key) {
    if (key.id == "z") return;
    begun.DecrementCount();
    go_on.WaitForNotification();
  });
  Answer<absl::StatusOr<CapturedState>> captured[2];
  captured[0].Start(world.flows, world.checkpointer.Capture(x, nullptr));
  captured[1].Start(world.flows, world.checkpointer.Capture(y, nullptr));
  begun.Wait();  // two exports hold a thread each
  Answer<Residency::PinResults> pins;
  pins.Start(world.flows, world.residency.Pin({z}, SteadyNow() + absl::Seconds(60)));
  const SteadyTime end = SteadyNow() + absl::Seconds(60);
  while (!pins.given() && SteadyNow() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(pins.given()) << "the step waits for the exports";
  go_on.Notify();
  ASSERT_TRUE(pins.Wait()[0].ok()) << pins.Wait()[0].status();
  EXPECT_EQ(*TieredWorld::Read(*pins.Wait()[0]), 3);
  for (auto& capture : captured) EXPECT_TRUE(capture.Wait().ok());
}

TEST(Residency, AWaitForRoomEndsWithTheDeadline) {
  TieredWorld world({.device_sessions = 1});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  const auto pin = world.PinOne(b);
  const auto late = world.Pin({a}, SteadyNow() + absl::Milliseconds(20));
  EXPECT_EQ(late[0].status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(TieredWorld::Read(*pin).ok());
}

TEST(Residency, AWaitForALockEndsWithTheDeadlineThoughNobodyLetsGo) {
  TieredWorld world({.device_sessions = 2});
  const auto a = world.Make("a", 1);
  const auto b = world.Make("b", 2);
  SessionLease lease = a->TryLock();
  ASSERT_TRUE(lease.valid());
  const auto soon = [] { return SteadyNow() + absl::Milliseconds(20); };
  for (const auto& pin : world.Pin({b, a}, soon())) {
    ExpectError(pin.status(), absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded);
  }
  EXPECT_EQ(b->gate().pins(), 0);
  ExpectError(world.LockResident(a, soon()).status(), absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded);
  lease.Release();
  EXPECT_EQ(*world.Read(a), 1) << "the lock that was given up keeps nobody out";
}

TEST(Residency, AWaitForACopyOfAParkedSessionEndsWithTheDeadlineThoughItIsNotWritten) {
  TieredWorld world({.device_sessions = 1});
  const auto a = world.Make("a", 1);
  const auto b = world.Make("b", 2);
  GDN_ASSERT_OK_AND_ASSIGN(CapturedState captured, world.Capture(a));
  const auto late = world.Pin({a}, SteadyNow() + absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late[0].status())) << late[0].status();
  EXPECT_EQ(world.PlaceOf(b), "device");
  captured.held.Release();
  EXPECT_EQ(*world.Read(a), 1);
}

TEST(Residency, AWaitForALockEndsWhenTheClientGoes) {
  TieredWorld world({.device_sessions = 2});
  const auto a = world.Make("a", 1);
  SessionLease lease = a->TryLock();
  ASSERT_TRUE(lease.valid());
  CancelSource client_gone;
  Answer<Residency::PinResults> pins;
  Answer<absl::StatusOr<SessionLease>> locked;
  pins.Start(world.flows, world.residency.Pin({a}, client_gone.Never()));
  locked.Start(world.flows, world.residency.LockResident(a, client_gone.Never()));
  client_gone.Cancel();
  ExpectError(pins.Wait()[0].status(), absl::StatusCode::kCancelled, reason::kCallCancelled);
  ExpectError(locked.Wait().status(), absl::StatusCode::kCancelled, reason::kCallCancelled);
  lease.Release();
  EXPECT_EQ(*world.Read(a), 1);
}

TEST(Residency, APrefetchBringsASessionBackAndPinsNothing) {
  TieredWorld world({.device_sessions = 1});
  const auto a = world.Make("a", 3);
  const auto b = world.Make("b");
  EXPECT_FALSE(world.residency.Prefetch(b));
  EXPECT_TRUE(world.residency.Prefetch(a));
  while (!a->resident()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(*world.Read(a), 3);
  ASSERT_TRUE(world.Read(b).ok());
  EXPECT_EQ(world.PlaceOf(a), "host");
}

TEST(Residency, ALockBringsTheSessionBackAndKeepsCallsWaiting) {
  TieredWorld world({.device_sessions = 1});
  const auto a = world.Make("a", 3);
  const auto b = world.Make("b");
  GDN_ASSERT_OK_AND_ASSIGN(SessionLease lease, world.LockResident(a));
  EXPECT_TRUE(lease.resident());
  EXPECT_EQ(ReadContents(lease, 1), TieredWorld::MarkOf(3, 1));
  Answer<Residency::PinResults> pins;
  pins.Start(world.flows, world.residency.Pin({a}, Deadline()));
  EXPECT_FALSE(pins.given());
  lease.Release();
  EXPECT_EQ(*TieredWorld::Read(*pins.Wait()[0]), 3);
}

TEST(Residency, AParkedSessionThatIsBeingCopiedComesBackOnceItIs) {
  TieredWorld world({.device_sessions = 1});
  const auto a = world.Make("a", 3);
  const auto b = world.Make("b");
  GDN_ASSERT_OK_AND_ASSIGN(CapturedState captured, world.Capture(a));
  EXPECT_EQ(captured.image->layers.size(), 2u);
  Answer<Residency::PinResults> pins;
  pins.Start(world.flows, world.residency.Pin({a}, Deadline()));
  world.io.Drain();
  world.transfers.Drain();
  EXPECT_FALSE(pins.given()) << "and waits without keeping the IO threads busy";
  captured.held.Release();
  EXPECT_EQ(*TieredWorld::Read(*pins.Wait()[0]), 3);
}

TEST(Residency, ClaimsAreMadeRoomFor) {
  TieredWorld world({.device_sessions = 2});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  const auto pin = world.PinOne(b);
  {
    GDN_ASSERT_OK_AND_ASSIGN(const RoomClaims claims,
                             world.Reserve({.dims = world.spec.dims, .count = 2}, a->account()));
    EXPECT_EQ(claims.slots.size(), 2u);
    EXPECT_EQ(world.PlaceOf(a), "host");
    EXPECT_EQ(world.PlaceOf(b), "device");
  }
  GDN_ASSERT_OK_AND_ASSIGN(
      const RoomClaims beside,
      world.Reserve({.dims = world.spec.dims, .pool = AdmitStep(b).pool(), .count = 2}, b->account()));
  EXPECT_EQ(beside.slots[0].pool(), AdmitStep(b).pool());
}

TEST(Residency, ForksThatGaveWayComeBackEachWithItsOwn) {
  TieredWorld world({.device_sessions = 4});
  const auto parent = world.Make("p", 5);
  std::shared_ptr<Session> child;
  {
    GDN_ASSERT_OK_AND_ASSIGN(auto creation, world.manager.Begin(world.Init("c")));
    SessionLease lease = parent->TryLock();
    child = world.Fork(lease, "c").value();
    world.room.Track(child);
    creation.Replace(child);
    creation.Publish();
  }
  {
    const auto pin = world.PinOne(child);
    ASSERT_TRUE(Decode(std::move(child->Admit(pin->Another(), PlainStep(0), nullptr)->lease), {.tail = 9}).ok());
  }
  for (int i = 0; i < 8; ++i) world.Make(std::to_string(i));
  EXPECT_EQ(world.PlaceOf(parent), "host");
  EXPECT_EQ(world.PlaceOf(child), "host");
  EXPECT_EQ(*world.Read(parent), 5);
  GDN_ASSERT_OK_AND_ASSIGN(const auto pin, world.PinOne(child));
  const Contents own{.base = TieredWorld::MarkOf(5, 0).base, .tail = 9};
  EXPECT_EQ(ReadContents(AdmitStep(child, PlainStep(0))), own) << "the shared base came with its own log";
  EXPECT_EQ(ReadContents(AdmitStep(child, PlainStep(1))), TieredWorld::MarkOf(5, 1));
}

}  // namespace
}  // namespace gdn::residency_test
