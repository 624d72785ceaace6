#include "server/session/session_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "server/session/durable/recovery.h"
#include "server/session/housekeeper.h"
#include "server/session/session_errors.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::session_manager_test {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;

class SessionManagerTest : public ::testing::Test {
 protected:
  static SessionInit Init(const std::string& id, const std::string& principal = "", const std::string& request = "r") {
    return {.principal = principal,
            .id = id,
            .spec = OperatorSessionSpec(2),
            .affinity = {},
            .request = HashBytes(request)};
  }
  absl::StatusOr<SessionCreation> Begin(const std::string& id, const std::string& principal = "",
                                        const std::string& request = "r") {
    return manager_.Begin(Init(id, principal, request));
  }
  void Make(const std::string& id, const std::string& principal = "") {
    GDN_ASSERT_OK_AND_ASSIGN(const auto session, world_.TryMake(Init(id, principal)));
  }
  absl::Status Delete(const std::string& id, const std::string& principal = "") {
    return BlockOn(world_.executor, manager_.Delete(principal, id));
  }
  std::vector<std::string> List(const std::string& principal, const std::string& after, size_t limit) {
    std::vector<std::string> ids;
    for (const auto& session : manager_.List(principal, after, limit)) ids.push_back(session->id());
    return ids;
  }

  TieredWorld world_{{.device_sessions = 100, .host = false}};
  SessionManager& manager_ = world_.manager;
};

TEST_F(SessionManagerTest, ASessionInTheMakingIsNotToBeFound) {
  {
    GDN_ASSERT_OK_AND_ASSIGN(auto creation, Begin("a"));
    EXPECT_TRUE(creation.pending());
    EXPECT_TRUE(creation.lease().valid());
    EXPECT_FALSE(creation.lease().resident());
    EXPECT_EQ(ErrorReason(manager_.Find("", "a").status()), reason::kSessionNotFound);
    EXPECT_EQ(ErrorReason(Delete("a")), reason::kSessionNotFound);
    EXPECT_THAT(List("", "", 10), ElementsAre());
    const auto second = Begin("a");
    ExpectError(second.status(), absl::StatusCode::kAborted, reason::kSessionBusy);
    creation.Publish();
    EXPECT_FALSE(creation.pending());
  }
  ASSERT_TRUE(manager_.Find("", "a").ok());
  EXPECT_EQ((*manager_.Find("", "a"))->id(), "a");
  EXPECT_EQ((*manager_.Find("", "a"))->affinity(), "a") << "where the caller names none";
}

TEST_F(SessionManagerTest, AnAbandonedCreationLeavesNothing) {
  {
    GDN_ASSERT_OK_AND_ASSIGN(auto creation, Begin("a"));
    GDN_ASSERT_OK_AND_ASSIGN(const SessionLease placed,
                             world_.Place(std::move(creation.lease()), std::make_shared<SessionImage>()));
    const SessionCreation moved = std::move(creation);
    EXPECT_GT(world_.store.used_bytes(), 0);
    EXPECT_EQ(manager_.size(), 1u);
    EXPECT_EQ(world_.room.sessions(), 1);
  }
  EXPECT_EQ(world_.store.used_bytes(), 0);
  EXPECT_EQ(world_.room.sessions(), 0);
  EXPECT_EQ(manager_.size(), 0u);
  EXPECT_TRUE(Begin("a").ok());
}

TEST_F(SessionManagerTest, TheSameRequestFindsTheSessionAndAnotherIsRefused) {
  Make("a");
  const auto session = *manager_.Find("", "a");
  const int64_t used = world_.store.used_bytes();
  {
    GDN_ASSERT_OK_AND_ASSIGN(const auto again, Begin("a"));
    EXPECT_FALSE(again.pending());
    EXPECT_EQ(again.session(), session);
  }
  EXPECT_TRUE(manager_.Find("", "a").ok()) << "dropping a creation that made nothing drops nothing";
  const auto other = Begin("a", "", "another request");
  ExpectError(other.status(), absl::StatusCode::kAlreadyExists, reason::kSessionExists);
  EXPECT_EQ(world_.store.used_bytes(), used);
}

TEST_F(SessionManagerTest, EmptyIdsBecomeRandomOnes) {
  const auto first = Begin("");
  const auto second = Begin("");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(first->session()->id(), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_NE(first->session()->id(), second->session()->id());
}

TEST_F(SessionManagerTest, EveryPrincipalHasIdsOfItsOwn) {
  Make("a", "one");
  EXPECT_EQ(manager_.Find("two", "a").status(), manager_.Find("three", "a").status());
  EXPECT_EQ(ErrorReason(manager_.Find("two", "a").status()), reason::kSessionNotFound);
  EXPECT_EQ(ErrorReason(Delete("a", "two")), reason::kSessionNotFound);
  Make("a", "two");
  EXPECT_NE(*manager_.Find("one", "a"), *manager_.Find("two", "a"));
  EXPECT_TRUE(Delete("a", "two").ok());
  EXPECT_TRUE(manager_.Find("one", "a").ok());
}

TEST_F(SessionManagerTest, ListsAscendFromTheIdAfter) {
  for (const char* id : {"c", "a", "b", "d"}) Make(id, "one");
  Make("aa", "two");
  Make("z", "on");
  EXPECT_THAT(List("one", "", 10), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(List("one", "", 2), ElementsAre("a", "b"));
  EXPECT_THAT(List("one", "b", 2), ElementsAre("c", "d"));
  EXPECT_THAT(List("one", "bb", 10), ElementsAre("c", "d"));
  EXPECT_THAT(List("one", "d", 10), ElementsAre());
  EXPECT_THAT(List("nobody", "", 10), ElementsAre());
  EXPECT_EQ(manager_.All().size(), 6u);
}

TEST_F(SessionManagerTest, ABusySessionIsNotDeleted) {
  Make("a");
  const auto session = *manager_.Find("", "a");
  {
    const StepLease step = AdmitStep(session);
    ASSERT_TRUE(step.valid());
    EXPECT_EQ(ErrorReason(Delete("a")), reason::kSessionBusy);
    EXPECT_TRUE(manager_.Find("", "a").ok());
  }
  EXPECT_TRUE(Delete("a").ok());
  EXPECT_EQ(ErrorReason(Delete("a")), reason::kSessionNotFound);
  EXPECT_EQ(manager_.size(), 0u);
  EXPECT_EQ(world_.store.used_bytes(), 0) << "whoever still holds the session has no state";
  EXPECT_EQ(ErrorReason(world_.PinOne(session).status()), reason::kSessionNotFound);
}

TEST_F(SessionManagerTest, AnAdoptedSessionIsParkedAndDurable) {
  const absl::Time when = absl::Now();
  SessionInit init = Init("a");
  init.epoch = 5;
  init.idle_ttl = absl::Hours(1);
  manager_.Adopt(
      init, {{.layer = 0, .progress = {.token_count = 9, .log_length = 9}, .kind = InputKind::kDeltaRule}, {}}, when);
  GDN_ASSERT_OK_AND_ASSIGN(const auto session, manager_.Find("", "a"));
  EXPECT_FALSE(session->resident());
  EXPECT_EQ(session->epoch(), 5);
  EXPECT_EQ(session->durable_time(), when);
  EXPECT_EQ(session->Layers()[0].progress.token_count, 9);
  EXPECT_FALSE(session->undurable().any);
  manager_.Adopt(Init("a"), std::vector<LayerInfo>(2), when);
  EXPECT_EQ((*manager_.Find("", "a"))->epoch(), 5) << "an id that is taken stays whose it is";
}

class SessionEndTest : public ::testing::Test {
 protected:
  // Erased everywhere, and the id free for another.
  void ExpectGone(const std::string& id) {
    EXPECT_EQ(world_.tiers.PlaceOf(Key(id)), "");
    EXPECT_TRUE(absl::IsNotFound(world_.tiers.Fetch(Key(id)).status()));
    for (const auto& [key, version] : world_.disk.versions()) EXPECT_NE(key.id, id);
    EXPECT_FALSE(world_.manager.Find("", id).ok());
    GDN_ASSERT_OK_AND_ASSIGN(const auto again, world_.TryMake(world_.Init(id)));
    EXPECT_EQ(again->Layers()[0].progress.token_count, 0);
    EXPECT_EQ(*world_.Read(again), 0.0f);
  }

  TieredWorld world_{{.device_sessions = 1, .disk = true}};
};

TEST_F(SessionEndTest, AParkedSessionIsErasedFromEveryTier) {
  const auto a = world_.Make("a", 1);
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  ASSERT_TRUE(world_.Checkpoint(a, "named").ok());
  const auto b = world_.Make("b");
  EXPECT_EQ(world_.tiers.PlaceOf(Key("a")), "host");
  EXPECT_EQ(world_.disk.versions().size(), 2u);
  EXPECT_TRUE(world_.Delete("a").ok());
  ExpectGone("a");
}

TEST_F(SessionEndTest, ALockedSessionEndsWhenItIsLetGo) {
  const auto a = world_.Make("a", 1);
  SessionLease lease = a->TryLock();
  Answer<absl::Status> deleted;
  deleted.Start(world_.flows, world_.manager.Delete("", "a"));
  EXPECT_FALSE(deleted.given());
  EXPECT_EQ(ErrorReason(world_.manager.Find("", "a").status()), reason::kSessionNotFound);
  EXPECT_EQ(ErrorReason(world_.manager.Begin(world_.Init("a")).status()), reason::kSessionBusy);
  EXPECT_EQ(ErrorReason(world_.Delete("a")), reason::kSessionBusy) << "its durable copies are there until it has ended";
  lease.Release();
  EXPECT_TRUE(deleted.Wait().ok());
  EXPECT_EQ(ErrorReason(world_.Delete("a")), reason::kSessionNotFound) << "it ends once";
  ExpectGone("a");
}

TEST_F(SessionEndTest, ASessionThatIsBeingCheckpointedEndsAfterwards) {
  const auto a = world_.Make("a", 1);
  HeldStore store(world_.disk);
  Answer<absl::StatusOr<CheckpointResult>> made;
  made.Start(world_.flows, world_.checkpointer.Checkpoint(a, ""));
  store.Await();
  Answer<absl::Status> deleted;
  deleted.Start(world_.flows, world_.manager.Delete("", "a"));
  EXPECT_FALSE(deleted.given());
  store.Release();
  EXPECT_TRUE(deleted.Wait().ok());
  EXPECT_TRUE(made.Wait().ok());
  ExpectGone("a");
}

TEST_F(SessionEndTest, CallsThatWaitForAnEndedSessionAreTold) {
  const auto a = world_.Make("a");
  SessionLease lease = a->TryLock();
  Answer<Residency::PinResults> pins;
  pins.Start(world_.flows, world_.residency.Pin({a}, Deadline()));
  Answer<absl::StatusOr<SessionLease>> locked;
  Answer<absl::Status> deleted;
  deleted.Start(world_.flows, world_.manager.Delete("", "a"));
  locked.Start(world_.flows, world_.residency.LockResident(a, Deadline()));
  lease.Release();
  EXPECT_TRUE(deleted.Wait().ok());
  EXPECT_EQ(ErrorReason(pins.Wait()[0].status()), reason::kSessionNotFound);
  EXPECT_EQ(ErrorReason(locked.Wait().status()), reason::kSessionNotFound);
}

TEST_F(SessionEndTest, SessionsWhoseTimeIsOverEndOnce) {
  SessionInit idle = world_.Init("idle");
  idle.idle_ttl = absl::Hours(1);
  SessionInit old = world_.Init("old");
  old.max_lifetime = absl::Hours(2);
  ASSERT_TRUE(world_.TryMake(idle).ok());
  ASSERT_TRUE(world_.TryMake(old).ok());
  world_.Make("eternal");
  world_.manager.DeleteExpired(SteadyNow() + absl::Minutes(59));
  EXPECT_EQ(world_.manager.expired(), 0);
  const auto session = world_.manager.Find("", "idle");
  {
    const auto pin = world_.PinOne(*session);
    world_.manager.DeleteExpired(SteadyNow() + absl::Hours(1) + absl::Minutes(1));
    EXPECT_EQ(world_.manager.expired(), 0) << "not while a call uses it";
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { world_.manager.DeleteExpired(SteadyNow() + absl::Hours(3)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world_.manager.expired(), 2);
  while (world_.manager.size() > 1) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(world_.manager.size(), 1u);
  ExpectGone("idle");
  ExpectGone("old");
}

TEST_F(SessionEndTest, UseKeepsASessionAlive) {
  SessionInit init = world_.Init("a");
  init.idle_ttl = absl::Hours(1);
  GDN_ASSERT_OK_AND_ASSIGN(const auto session, world_.TryMake(init));
  const SteadyTime before = session->last_used();
  ASSERT_TRUE(world_.Read(session).ok());
  EXPECT_GT(session->last_used(), before);
}

TEST_F(SessionEndTest, OneThatCannotLeaveStaysAndMayLeaveLater) {
  const auto a = world_.Make("a", 1);
  const auto leave = [&](const absl::Status& moved) {
    return BlockOn(world_.executor, world_.manager.Leave(a, [&](SessionLease&) { return moved; }));
  };
  EXPECT_EQ(ErrorReason(leave(Unavailable("redis"))), reason::kTierUnavailable);
  EXPECT_EQ(*world_.Read(a), 1);
  EXPECT_TRUE(leave(absl::OkStatus()).ok());
  EXPECT_FALSE(world_.manager.Find("", "a").ok());
}

// The caller that reports the loss finds the session leaving and does not come back. So the session must not stay:
// nobody could call it.
TEST_F(SessionEndTest, OneThatIsLostWhileItCannotLeaveDoesNotStay) {
  const auto a = world_.Make("a", 1);
  int moves = 0;
  const auto move = [&](SessionLease&) -> absl::Status {
    if (++moves > 1) return absl::OkStatus();
    a->StopServing(SessionMoved("a"));
    Answer<absl::Status> other;
    other.Start(world_.flows, world_.manager.Leave(a, [](SessionLease&) { return absl::OkStatus(); }));
    EXPECT_EQ(ErrorReason(other.Wait()), reason::kSessionBusy);
    return Unavailable("redis");
  };
  EXPECT_TRUE(BlockOn(world_.executor, world_.manager.Leave(a, move)).ok());
  EXPECT_EQ(moves, 2);
  EXPECT_EQ(world_.manager.size(), 0u);
}

TEST_F(SessionEndTest, TheHousekeeperEndsThemByItself) {
  SessionInit init = world_.Init("a");
  init.max_lifetime = absl::Nanoseconds(1);
  ASSERT_TRUE(world_.TryMake(init).ok());
  world_.Make("eternal");
  const Housekeeper housekeeper(world_.manager, world_.checkpointer, world_.residency, world_.tiers,
                                absl::Milliseconds(1));
  while (world_.manager.size() > 1) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(world_.manager.expired(), 1);
}

TEST_F(SessionEndTest, ADeleteThatCouldBeForgottenIsRefusedAndTheSessionGoesOn) {
  TieredWorld world({.device_sessions = 2, .disk = true});
  const auto a = world.Make("a", 1);
  ASSERT_TRUE(world.Checkpoint(a).ok());
  world.disk.FailErasures(Unavailable("disk"));
  ExpectError(world.Delete("a"), absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_EQ(*world.Read(a), 1);
  EXPECT_TRUE(a->undurable().any) << "its copy may be gone, though the answer did not come";
  EXPECT_TRUE(world.Make("never stored", 2)->resident());
  EXPECT_TRUE(world.Delete("never stored").ok());
  world.disk.FailErasures(absl::OkStatus());
  EXPECT_TRUE(world.Delete("a").ok());
  EXPECT_TRUE(world.disk.versions().empty());
  EXPECT_EQ(world.store.used_bytes(), 0);
}

TEST_F(SessionEndTest, ASessionThatEndedDoesNotRiseWithTheNextServer) {
  TieredWorld world({.device_sessions = 2, .disk = true});
  const auto a = world.Make("a", 1);
  const auto b = world.Make("b", 2);
  for (const auto& session : {a, b}) ASSERT_TRUE(world.Checkpoint(session).ok());
  world.disk.KeepsNotes(true);
  world.disk.FailErasures(Unavailable("disk"));
  ASSERT_TRUE(world.Delete("a").ok());
  EXPECT_EQ(world.disk.versions().size(), 2u);

  TieredWorld next({.device_sessions = 2});
  TierStack tiers({&world.disk}, {.retry_after = absl::ZeroDuration()});
  SessionManager manager({.room = next.room, .tiers = tiers, .io = next.io, .executor = next.executor},
                         next.environment);
  const SpecOfModelFn no_models = [](const std::string&) { return std::optional<SessionSpec>(); };
  HeldBack held_back;
  ASSERT_TRUE(tiers.LoadErasureNotes().ok());
  GDN_ASSERT_OK_AND_ASSIGN(const Recovered recovered,
                           RecoverSessions({.tiers = tiers, .sessions = manager, .spec_of = no_models}, {&world.disk},
                                           {.first_epoch = 1000}, held_back));
  EXPECT_EQ(recovered.sessions, 1);
  EXPECT_TRUE(manager.Find("", "b").ok());
  EXPECT_EQ(ErrorReason(manager.Find("", "a").status()), reason::kSessionNotFound);
  world.disk.FailErasures(absl::OkStatus());
  tiers.Trim();
  EXPECT_EQ(world.disk.versions().size(), 1u);
  EXPECT_TRUE(world.disk.ErasureNotes()->empty());
}

}  // namespace
}  // namespace gdn::session_manager_test
