#include "server/session/durable/checkpointer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/count_limits.h"
#include "base/string_cat.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::checkpointer_test {
namespace {

class CheckpointerTest : public ::testing::Test {
 protected:
  static std::vector<int64_t> Counts(const Session& session) {
    std::vector<int64_t> counts;
    for (const LayerInfo& layer : session.Layers()) counts.push_back(layer.progress.token_count);
    return counts;
  }
  absl::StatusOr<std::vector<StoredSession>> List(const std::shared_ptr<Session>& session) {
    return BlockOn(world_.executor, world_.checkpointer.List(session));
  }

  TieredWorld world_{{.device_sessions = 2, .disk = true}};
};

TEST_F(CheckpointerTest, WithoutADurableTierNothingIsPromised) {
  TieredWorld world({.policy = {.every_tokens = 1, .every = absl::Seconds(1)}});
  const auto a = world.Make("a");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(world.Write(a, 1).ok()) << "and nobody waits";
  const absl::Status refused = world.Checkpoint(a).status();
  ExpectError(refused, absl::StatusCode::kFailedPrecondition, reason::kNoDurableTier);
  EXPECT_EQ(ErrorReason(world.Restore(a)), reason::kNoDurableTier);
  EXPECT_EQ(world.checkpointer.made(), 0);
}

TEST_F(CheckpointerTest, ACheckpointTellsWhatItHasAndTheSessionGoesOn) {
  const auto a = world_.Make("a", 1);
  GDN_ASSERT_OK_AND_ASSIGN(const auto made, world_.Checkpoint(a));
  EXPECT_EQ(made.epoch, 1);
  ASSERT_EQ(made.layers.size(), 2u);
  EXPECT_EQ(made.layers[0].progress.token_count, 1);
  EXPECT_EQ(made.layers[0].durable_token_count, 1);
  EXPECT_GT(made.stored.written_bytes, 0);
  EXPECT_FALSE(a->undurable().any);
  EXPECT_EQ(a->durable_time(), made.when);
  ASSERT_TRUE(world_.Write(a, 2).ok());
  EXPECT_TRUE(a->undurable().any);
  EXPECT_EQ(a->undurable().tokens, 1);
  EXPECT_EQ(*world_.Read(a), 2);
  EXPECT_EQ(world_.checkpointer.made(), 1);
}

TEST_F(CheckpointerTest, StepsGoOnWhileTheCopyIsWrittenAndAreNotInIt) {
  const auto a = world_.Make("a", 1);
  HeldStore store(world_.disk);
  Answer<absl::StatusOr<CheckpointResult>> made;
  made.Start(world_.flows, world_.checkpointer.Checkpoint(a, ""));
  store.Await();
  ASSERT_TRUE(world_.Write(a, 2).ok());
  EXPECT_EQ(a->undurable().tokens, 2);
  store.Release();
  ASSERT_TRUE(made.Wait().ok());
  EXPECT_EQ(a->undurable().tokens, 1);
  EXPECT_TRUE(a->undurable().any);
  ASSERT_TRUE(world_.Restore(a).ok());
  EXPECT_EQ(*world_.Read(a), 1);
}

TEST_F(CheckpointerTest, ARestoreTakesStateCountsAndRepliesBackUnderTheNextEpoch) {
  const auto a = world_.Make("a");
  const auto step = [&](const std::string& request_id, float mark) {
    StepRequest request = PlainStep(0);
    request.request_id = request_id;
    auto reply = std::make_shared<StoredReply>();
    reply->output = request_id;
    return Decode(AdmitStep(a, request), {.base = mark, .tail = mark}, /*fold=*/true, reply);
  };
  ASSERT_TRUE(step("r1", 1).ok());
  a->NoteAccepted({.accepted_tokens = 1, .request_id = "a1"});
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  ASSERT_TRUE(step("r2", 2).ok());
  a->NoteAccepted({.accepted_tokens = 2, .request_id = "a2"});
  ASSERT_TRUE(Decode(AdmitStep(a, PlainStep(1)), {.tail = 3}).ok());

  ASSERT_TRUE(world_.Restore(a).ok());
  EXPECT_EQ(a->epoch(), 2);
  EXPECT_EQ(Counts(*a), (std::vector<int64_t>{1, 0}));
  EXPECT_FALSE(a->undurable().any);
  EXPECT_FALSE(a->resident());
  EXPECT_EQ(world_.store.used_bytes(), 0);
  EXPECT_EQ(world_.environment.replies().bytes(), 0);
  GDN_ASSERT_OK_AND_ASSIGN(const auto pin, world_.PinOne(a));
  StepRequest request = PlainStep(0);
  request.epoch = 1;
  EXPECT_EQ(ErrorReason(a->Admit(pin.Another(), request, nullptr).status()), reason::kEpochMismatch);
  request.request_id = "r1";
  const auto stored = a->Admit(pin.Another(), request, nullptr);
  ASSERT_TRUE(stored.ok() && stored->stored != nullptr);
  EXPECT_EQ(stored->stored->output, "r1");
  request.request_id = "r2";
  request.epoch = 2;
  EXPECT_TRUE(a->Admit(pin.Another(), request, nullptr)->lease.valid()) << "that step was lost";
  EXPECT_EQ(ReadContents(AdmitStep(a)), (Contents{1, 1}));
  EXPECT_TRUE(AdmitStep(a, PlainStep(1)).fresh());
  EXPECT_TRUE(a->AdmitAccept(pin, {.accepted_tokens = 1, .request_id = "a1"})->empty());
  EXPECT_FALSE(a->AdmitAccept(pin, {.accepted_tokens = 2, .request_id = "a2"}).ok());
}

TEST_F(CheckpointerTest, CallsThatWaitBehindARestoreAreRefusedIfTheyNameTheEpochBeforeIt) {
  const auto a = world_.Make("a", 1);
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  ASSERT_TRUE(world_.Write(a, 2).ok());
  SessionLease lease = a->TryLock();
  ASSERT_TRUE(lease.valid());
  Answer<absl::Status> first, second;
  Answer<absl::StatusOr<CheckpointResult>> made;
  Answer<absl::StatusOr<CapturedState>> captured;
  first.Start(world_.flows, world_.checkpointer.Restore(a, "", Deadline(), /*epoch=*/1));
  made.Start(world_.flows, world_.checkpointer.Checkpoint(a, "named", Deadline(), /*epoch=*/1));
  captured.Start(world_.flows, world_.checkpointer.Capture(a, nullptr, Deadline(), /*epoch=*/1));
  second.Start(world_.flows, world_.checkpointer.Restore(a, "", Deadline(), /*epoch=*/1));
  lease.Release();
  ASSERT_TRUE(first.Wait().ok());
  ExpectError(made.Wait().status(), absl::StatusCode::kAborted, reason::kEpochMismatch);
  ExpectError(captured.Wait().status(), absl::StatusCode::kAborted, reason::kEpochMismatch);
  ExpectError(second.Wait(), absl::StatusCode::kAborted, reason::kEpochMismatch);
  EXPECT_EQ(a->epoch(), 2) << "restored once";
  EXPECT_EQ(*world_.Read(a), 1);
  EXPECT_EQ(ErrorReason(world_.Restore(a, "named")), reason::kCheckpointNotFound) << "nothing was written";
}

TEST_F(CheckpointerTest, ASessionInTheLastEpochDoesNotGoBack) {
  SessionInit init = world_.Init("a");
  init.epoch = kMaxEpoch - 1;
  GDN_ASSERT_OK_AND_ASSIGN(const auto a, world_.TryMake(init));
  ASSERT_TRUE(world_.Write(a, 1).ok());
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  ASSERT_TRUE(world_.Restore(a).ok());
  EXPECT_EQ(a->epoch(), kMaxEpoch);
  ASSERT_TRUE(world_.Write(a, 2).ok());
  ExpectError(world_.Restore(a), absl::StatusCode::kOutOfRange, reason::kCountLimit);
  EXPECT_EQ(a->epoch(), kMaxEpoch);
  EXPECT_EQ(*world_.Read(a), 2);
}

TEST_F(CheckpointerTest, NamedCheckpointsStandForThemselves) {
  const auto a = world_.Make("a");
  for (const float mark : {1.0f, 2.0f, 3.0f}) {
    ASSERT_TRUE(world_.Write(a, mark).ok());
    ASSERT_TRUE(world_.Checkpoint(a, StrCat("at-", static_cast<int>(mark))).ok());
  }
  EXPECT_TRUE(a->undurable().any) << "a crash leads to the newest one without a name, and there is none";
  ASSERT_TRUE(world_.Restore(a, "at-2").ok());
  EXPECT_EQ(*world_.Read(a), 2);
  EXPECT_EQ(Counts(*a), (std::vector<int64_t>{2, 2}));
  ASSERT_TRUE(world_.Write(a, 9).ok());
  ASSERT_TRUE(world_.Restore(a).ok());
  EXPECT_EQ(*world_.Read(a), 2) << "a restore is durable as restored";
  ASSERT_TRUE(world_.Restore(a, "at-3").ok());
  EXPECT_EQ(*world_.Read(a), 3);
  EXPECT_EQ(a->epoch(), 4);
}

TEST_F(CheckpointerTest, OneNamedCheckpointTooManyIsRefusedBeforeAnythingIsCopied) {
  const auto a = world_.Make("a", 1);
  for (size_t i = 0; i < kMostNamedCheckpoints; ++i) ASSERT_TRUE(world_.Checkpoint(a, StrCat(i)).ok());
  const int64_t stores = world_.disk.store_calls();
  ExpectError(world_.Checkpoint(a, "more").status(), absl::StatusCode::kResourceExhausted, reason::kTooManyCheckpoints);
  EXPECT_EQ(world_.disk.store_calls(), stores);
  EXPECT_TRUE(world_.Checkpoint(a, "7").ok()) << "an id that is used again";
  EXPECT_TRUE(world_.Checkpoint(a).ok()) << "the newest";
  ASSERT_TRUE(world_.Write(a, 2).ok()) << "the session is not locked any more";
  const absl::Status deleted = world_.DeleteCheckpoint(a, "7");
  ASSERT_TRUE(deleted.ok()) << deleted;
  ASSERT_TRUE(world_.Checkpoint(a, "more").ok());
  GDN_ASSERT_OK_AND_ASSIGN(const auto listed, List(a));
  EXPECT_EQ(listed.size(), kMostNamedCheckpoints);
}

TEST_F(CheckpointerTest, OfASessionThatHasEndedNothingIsListedOrDeleted) {
  const auto a = world_.Make("a", 1);
  ASSERT_TRUE(world_.Checkpoint(a, "one").ok());
  ASSERT_TRUE(world_.Delete("a").ok());
  EXPECT_EQ(ErrorReason(world_.DeleteCheckpoint(a, "one")), reason::kSessionNotFound);
  EXPECT_EQ(ErrorReason(List(a).status()), reason::kSessionNotFound);
}

TEST_F(CheckpointerTest, ACheckpointThatIsNotThereChangesNothing) {
  const auto a = world_.Make("a", 1);
  for (const std::string id : {"", "named"}) {
    const absl::Status refused = world_.Restore(a, id);
    ExpectError(refused, absl::StatusCode::kNotFound, reason::kCheckpointNotFound);
    EXPECT_EQ(ErrorMetadata(refused).at("checkpoint"), id);
  }
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  ASSERT_TRUE(world_.Write(a, 2).ok());
  world_.disk.FailLoads(Unavailable("disk"));
  EXPECT_EQ(ErrorReason(world_.Restore(a)), reason::kTierUnavailable);
  world_.disk.FailLoads(absl::OkStatus());
  world_.disk.FailStores(Unavailable("disk"));
  EXPECT_EQ(ErrorReason(world_.Restore(a)), reason::kTierUnavailable) << "it could not be made durable as restored";
  world_.disk.FailStores(absl::OkStatus());
  EXPECT_EQ(a->epoch(), 1);
  EXPECT_EQ(*world_.Read(a), 2);
  EXPECT_EQ(Counts(*a), (std::vector<int64_t>{2, 2}));
}

TEST_F(CheckpointerTest, AParkedSessionIsCheckpointedAndRestoredWhereItIs) {
  const auto a = world_.Make("a", 1);
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  ASSERT_TRUE(world_.Write(a, 2).ok());
  world_.Make("b");
  world_.Make("c");
  EXPECT_EQ(world_.tiers.PlaceOf(a->key()), "host");
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  EXPECT_EQ(world_.tiers.PlaceOf(a->key()), "host");
  EXPECT_FALSE(a->undurable().any);
  ASSERT_TRUE(world_.Checkpoint(a, "two").ok());
  ASSERT_TRUE(world_.Write(a, 3).ok());
  ASSERT_TRUE(world_.Restore(a).ok());
  EXPECT_EQ(world_.tiers.PlaceOf(a->key()), "disk");
  EXPECT_EQ(*world_.Read(a), 2);
  EXPECT_FALSE(world_.disk.overlapped());
}

TEST_F(CheckpointerTest, NoSessionIsFurtherFromItsLastCopyThanThePolicySays) {
  constexpr int64_t kEvery = 6;
  TieredWorld world({.device_sessions = 2, .disk = true, .policy = {.every_tokens = kEvery}});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  for (int i = 1; i <= 150; ++i) {
    const auto& session = i % 3 == 0 ? b : a;
    ASSERT_TRUE(world.WaitForRoom(session, session->spec().layers[0]).ok());
    GDN_ASSERT_OK_AND_ASSIGN(const auto pin, world.PinOne(session));
    ASSERT_LT(session->undurable().tokens, kEvery) << "a step was let in that it should have kept waiting";
    ASSERT_TRUE(Decode(std::move(session->Admit(pin.Another(), PlainStep(), nullptr)->lease), {.tail = 1}).ok());
  }
  EXPECT_GE(world.checkpointer.made(), 150 / (2 * kEvery));
  EXPECT_EQ(world.checkpointer.failed(), 0);
}

TEST_F(CheckpointerTest, StepsWaitForASlowCheckpointAndThenGoOn) {
  absl::Notification go_on;
  TieredWorld world({.device_sessions = 2, .disk = true, .policy = {.every_tokens = 4}});
  const auto a = world.Make("a");
  const auto neighbour = world.Make("b");
  world.disk.OnStore([&](const StateKey&) { go_on.WaitForNotification(); });
  for (int i = 1; i <= 4; ++i) ASSERT_TRUE(world.Write(a, static_cast<float>(i)).ok());
  Answer<absl::Status> room, again;
  room.Start(world.flows, world.checkpointer.WaitForRoom(a, a->spec().layers[0], 1));
  EXPECT_TRUE(world.Write(neighbour, 1).ok()) << "its neighbour has moved one token";
  EXPECT_FALSE(room.given());
  go_on.Notify();
  EXPECT_TRUE(room.Wait().ok()) << room.Wait();
  again.Start(world.flows, world.checkpointer.WaitForRoom(a, a->spec().layers[0], 1));
  EXPECT_TRUE(again.given()) << "there is nothing to wait for";
  EXPECT_LT(a->undurable().tokens, 4);
  EXPECT_EQ(*world.Read(a), 4);
}

TEST_F(CheckpointerTest, AStepThatWaitsForASlowCheckpointEndsWithItsDeadlineOrItsClient) {
  absl::Notification go_on;
  TieredWorld world({.device_sessions = 2, .disk = true, .policy = {.every_tokens = 4}});
  const auto a = world.Make("a");
  world.disk.OnStore([&](const StateKey&) { go_on.WaitForNotification(); });
  for (int i = 1; i <= 4; ++i) ASSERT_TRUE(world.Write(a, static_cast<float>(i)).ok());
  const int32_t layer = a->spec().layers[0];
  ExpectError(world.WaitForRoom(a, layer, SteadyNow() + absl::Milliseconds(20)), absl::StatusCode::kDeadlineExceeded,
              reason::kDeadlineExceeded);
  CancelSource client_gone;
  Answer<absl::Status> gone, stays;
  gone.Start(world.flows, world.checkpointer.WaitForRoom(a, layer, 1, client_gone.Never()));
  stays.Start(world.flows, world.checkpointer.WaitForRoom(a, layer, 1));
  EXPECT_FALSE(gone.given());
  client_gone.Cancel();
  ExpectError(gone.Wait(), absl::StatusCode::kCancelled, reason::kCallCancelled);
  EXPECT_FALSE(stays.given()) << "the checkpoint is not made yet";
  go_on.Notify();
  EXPECT_TRUE(stays.Wait().ok()) << stays.Wait();
  EXPECT_EQ(*world.Read(a), 4);
}

TEST_F(CheckpointerTest, CallsThatWaitForALockEndWithTheirDeadlines) {
  const auto a = world_.Make("a", 1);
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  SessionLease lease = a->TryLock();
  ASSERT_TRUE(lease.valid());
  const auto soon = [] { return SteadyNow() + absl::Milliseconds(20); };
  EXPECT_TRUE(absl::IsDeadlineExceeded(world_.Checkpoint(a, "", soon()).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(world_.Restore(a, "", soon())));
  EXPECT_TRUE(absl::IsDeadlineExceeded(world_.Capture(a, soon()).status()));
  lease.Release();
  EXPECT_EQ(a->epoch(), 1) << "nothing was restored";
  EXPECT_TRUE(world_.Checkpoint(a).ok()) << "and nobody has the lock";
}

TEST(CheckpointMemory, AWaitForMemoryEndsWithTheDeadlineAndStepsGoOn) {
  TieredWorld world({.device_sessions = 2, .disk = true, .copy_sessions = 1});
  const auto a = world.Make("a", 1);
  const ByteCharge all = world.ledger.Charge(BytePool::kCopies, a->account(), world.SessionBytes());
  CancelSource client_gone;
  Answer<absl::StatusOr<CheckpointResult>> made;
  made.Start(world.flows, world.checkpointer.Checkpoint(a, "", client_gone.Never()));
  EXPECT_TRUE(world.Write(a, 2).ok()) << "the session is not locked meanwhile";
  EXPECT_FALSE(made.given());
  client_gone.Cancel();
  EXPECT_TRUE(absl::IsCancelled(made.Wait().status())) << made.Wait().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.Checkpoint(a, "", SteadyNow() + absl::Milliseconds(20)).status()));
  EXPECT_EQ(world.ledger.held(BytePool::kCopies), world.SessionBytes());
  EXPECT_EQ(world.disk.store_calls(), 0);
}

TEST_F(CheckpointerTest, ATierThatFailsHoldsNobodyBack) {
  TieredWorld world({.device_sessions = 2, .disk = true, .policy = {.every_tokens = 2}});
  world.disk.FailStores(Unavailable("disk"));
  const auto a = world.Make("a");
  for (int i = 1; i <= 50; ++i) ASSERT_TRUE(world.Write(a, static_cast<float>(i)).ok());
  EXPECT_GE(world.checkpointer.failed(), 1);
  EXPECT_EQ(world.checkpointer.made(), 0);
  EXPECT_GT(a->undurable().tokens, 2);
}

TEST_F(CheckpointerTest, WhatHasMovedIsMadeDurableAfterItsTime) {
  TieredWorld world({.device_sessions = 3, .disk = true, .policy = {.every = absl::Hours(1)}});
  const auto a = world.Make("a");
  const auto b = world.Make("b");
  world.checkpointer.Sweep({a, b}, SteadyNow() + absl::Minutes(59));
  EXPECT_EQ(world.disk.store_calls(), 0);
  world.checkpointer.Sweep({a, b}, SteadyNow() + absl::Minutes(61));
  while (a->undurable().any || b->undurable().any) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(world.disk.store_calls(), 2) << "a new session is made durable, though it has seen nothing";
  ASSERT_TRUE(world.Write(a, 1).ok());
  world.checkpointer.Sweep({a, b}, SteadyNow() + absl::Minutes(61));
  while (a->undurable().any) absl::SleepFor(absl::Milliseconds(1));
  world.checkpointer.Sweep({a, b}, SteadyNow() + absl::Minutes(122));
  EXPECT_EQ(world.disk.store_calls(), 3) << "neither that which has not moved nor that which is durable";
}

TEST_F(CheckpointerTest, TheLastCheckpointsEndWhenTheirTimeIsOver) {
  TieredWorld world({.device_sessions = 2, .disk = true});
  const auto a = world.Make("a", 1.0f);
  absl::Notification go_on;
  world.disk.OnStore([&](const StateKey&) { go_on.WaitForNotification(); });  // a store that hangs
  EXPECT_EQ(world.checkpointer.CheckpointAll({a}, absl::Milliseconds(1)), 1);
  go_on.Notify();
  EXPECT_EQ(world.checkpointer.CheckpointAll({a}, absl::InfiniteDuration()), 0);
}

TEST_F(CheckpointerTest, AllAreMadeDurableAndFailuresCounted) {
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < 5; ++i) {
    sessions.push_back(world_.Make(std::to_string(i), i == 0 ? 0.0f : 1.0f));
  }
  world_.disk.FailStores(Unavailable("disk"));
  EXPECT_EQ(world_.checkpointer.CheckpointAll(sessions), 5);
  world_.disk.FailStores(absl::OkStatus());
  EXPECT_EQ(world_.checkpointer.CheckpointAll(sessions), 0);
  EXPECT_EQ(world_.checkpointer.made(), 5);
  EXPECT_EQ(world_.checkpointer.CheckpointAll(sessions), 0);
  EXPECT_EQ(world_.checkpointer.made(), 5) << "what is durable is not written again";
}

TEST(CheckpointMemory, ADrainHasNoMoreCopiesAtATimeThanThereIsMemoryFor) {
  TieredWorld world({.device_sessions = 8, .disk = true, .copy_sessions = 2});
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < 8; ++i) sessions.push_back(world.Make(std::to_string(i), 1));
  // One that a call uses is copied last, and keeps nobody waiting.
  SessionPin pin = PinOf(sessions[0]);
  std::atomic<int64_t> most{0}, stores{0};
  world.disk.OnStore([&](const StateKey&) {
    const auto copies = std::count_if(sessions.begin(), sessions.end(), [](const auto& s) { return s->gate().held(); });
    int64_t seen = most;
    while (seen < copies && !most.compare_exchange_weak(seen, copies)) {
    }
    if (++stores == 7) pin.Release();
  });
  EXPECT_EQ(world.checkpointer.CheckpointAll(sessions), 0);
  EXPECT_EQ(world.checkpointer.made(), 8);
  EXPECT_LE(most, 2);
  EXPECT_EQ(world.ledger.held(BytePool::kCopies), 0);
}

TEST_F(CheckpointerTest, AnImportedStateIsNotDurableBeforeItIsWritten) {
  const auto a = world_.Make("a", 4);
  GDN_ASSERT_OK_AND_ASSIGN(auto image, world_.copier.CopyOut(a->TryLock(), {}));
  auto creation = world_.manager.Begin(world_.Init("b"));
  GDN_ASSERT_OK_AND_ASSIGN(SessionLease placed, world_.Place(std::move(creation->lease()), image));
  creation->Publish();
  placed.Release();
  const auto b = creation->session();
  EXPECT_EQ(*world_.Read(b), 4);
  EXPECT_TRUE(b->undurable().any);
  EXPECT_EQ(world_.checkpointer.CheckpointAll({b}), 0);
  EXPECT_EQ(world_.checkpointer.made(), 1);
}

TEST_F(CheckpointerTest, WhatIsParkedIsMadeDurableThoughTheDeviceHasFailed) {
  const auto parked = world_.Make("parked", 1);
  const auto also = world_.Make("also", 2);
  const auto b = world_.Make("b", 3);
  const auto c = world_.Make("c", 4);
  ASSERT_EQ(world_.PlaceOf(parked), "host");
  ASSERT_EQ(world_.PlaceOf(also), "host");
  world_.health.Report(MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "gone")).IgnoreError();
  GDN_ASSERT_OK_AND_ASSIGN(const auto made, world_.Checkpoint(parked));
  EXPECT_EQ(made.layers[0].durable_token_count, 1);
  EXPECT_EQ(ErrorReason(world_.Checkpoint(b).status()), reason::kDeviceFailed);
  EXPECT_EQ(world_.checkpointer.CheckpointAll({parked, also, b, c}), 2) << "those on the device";
  EXPECT_FALSE(also->undurable().any);
  EXPECT_EQ(VersionOf(world_.disk.Load(also->key()).value()), 1);
}

TEST_F(CheckpointerTest, ADamagedOrForeignCheckpointIsRefused) {
  const auto a = world_.Make("a", 1);
  ASSERT_TRUE(world_.Checkpoint(a).ok());
  world_.disk.Damage(a->key());
  EXPECT_EQ(world_.Restore(a).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(*world_.Read(a), 1);
  auto foreign = std::make_shared<SessionImage>();
  foreign->header.dims = ModelSessionSpec().dims;
  foreign->header.fingerprint = "f";
  ASSERT_TRUE(world_.disk.Store(Key("a", "foreign"), foreign).ok());
  EXPECT_EQ(ErrorReason(world_.Restore(a, "foreign")), reason::kStateMismatch);
  EXPECT_EQ(a->epoch(), 1);
}

TEST(CheckpointerEnd, WhatWasBegunIsAnsweredBeforeItIsGone) {
  TieredWorld world({.device_sessions = 4, .disk = true});
  std::atomic<int> answered{0};
  std::vector<std::shared_ptr<Session>> sessions;
  {
    Checkpointer checkpointer(world.Parts(), {.every_tokens = 2});
    for (int i = 0; i < 20; ++i) {
      const auto session = sessions.emplace_back(world.Make(std::to_string(i), 1));
      checkpointer.NoteProgress(session);  // one that nobody waits for
      world.flows.Spawn(checkpointer.Checkpoint(session, ""),
                        [&](const absl::StatusOr<CheckpointResult>& made) { answered += made.ok() ? 1 : 100; });
    }
  }
  for (const auto& session : sessions) EXPECT_FALSE(session->undurable().any);
  world.flows.Wait();
  EXPECT_EQ(answered, 20);
}

}  // namespace
}  // namespace gdn::checkpointer_test
