#include "server/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/server/session_test_support.h"

namespace gdn {
namespace {

StepRequest Request(std::string request_id = "", std::string payload = "p",
                    std::optional<int64_t> expected = std::nullopt) {
  return {.layer = 0,
          .kind = InputKind::kDeltaRule,
          .request_id = std::move(request_id),
          .payload = HashBytes(payload),
          .expected_token_count = expected};
}

StepReplyPtr Reply(const std::string& output) {
  return std::make_shared<const StepReply>(StepReply{.output = output, .token_count = 0, .compute_time_us = 0});
}

void NotJoined(absl::StatusOr<StepReplyPtr>) { ADD_FAILURE() << "this call joined nothing"; }

class SessionTest : public ::testing::Test {
 protected:
  StepLease Admit(const StepRequest& request) {
    auto admission = session_->Admit(request, NotJoined);
    EXPECT_TRUE(admission.ok()) << admission.status();
    EXPECT_TRUE(admission->lease.valid());
    return std::move(admission->lease);
  }
  // Admits, computes nothing and commits.
  void Step(const StepRequest& request, const LayerProgress& after, StepReplyPtr reply = nullptr) {
    StepLease lease = Admit(request);
    lease.TakeSlot();
    lease.Commit(after, std::move(reply));
  }
  std::string Reason(const StepRequest& request) { return ErrorReason(session_->Admit(request, NotJoined).status()); }

  SessionWorld world_;
  std::shared_ptr<Session> session_ = world_.MakeSession(OperatorSessionSpec(2));
};

TEST_F(SessionTest, BeginsFreshWithItsIdAsAffinity) {
  EXPECT_EQ(session_->affinity(), "a");
  for (const LayerInfo& info : session_->Layers()) {
    EXPECT_EQ(info.progress.token_count, 0);
    EXPECT_EQ(info.kind, InputKind::kNone);
    EXPECT_EQ(info.waiting_calls, 0);
  }
  const StepLease lease = Admit(Request());
  EXPECT_TRUE(lease.fresh());
  EXPECT_EQ(lease.before().token_count, 0);
}

TEST_F(SessionTest, ACommitMovesItsLayerAndNoOther) {
  Step(Request(), {.token_count = 5, .log_length = 2});
  const std::vector<LayerInfo> layers = session_->Layers();
  EXPECT_EQ(layers[0].progress.token_count, 5);
  EXPECT_EQ(layers[0].progress.log_length, 2);
  EXPECT_EQ(layers[0].kind, InputKind::kDeltaRule);
  EXPECT_EQ(layers[1].progress.token_count, 0);
  const StepLease lease = Admit(Request());
  EXPECT_FALSE(lease.fresh());
  EXPECT_EQ(lease.before().token_count, 5);
  EXPECT_EQ(lease.before().log_length, 2);
}

TEST_F(SessionTest, AnAbandonedLeaseLeavesTheStateAndAFreshLayerFresh) {
  {
    StepLease lease = Admit(Request("r"));
    EXPECT_GE(lease.TakeSlot(), 0);
    EXPECT_FALSE(lease.fresh());
  }
  EXPECT_TRUE(Admit(Request()).fresh()) << "the slot it took is given back";
  EXPECT_EQ(session_->Layers()[0].kind, InputKind::kNone);
  Step(Request("r"), {.token_count = 1, .log_length = 0}, Reply("x"));  // the id was not used up
  { StepLease lease = Admit(Request()); }
  EXPECT_FALSE(Admit(Request()).fresh()) << "a slot with a state in it stays";
  EXPECT_EQ(session_->Layers()[0].progress.token_count, 1);
}

TEST_F(SessionTest, AMovedLeaseIsTheSameRight) {
  StepLease lease = Admit(Request());
  StepLease moved = std::move(lease);
  EXPECT_FALSE(lease.valid());
  EXPECT_EQ(Reason(Request()), reason::kSessionBusy);
  StepLease other_layer = std::move(session_->Admit(PlainStep(1), NotJoined)->lease);
  moved = std::move(other_layer);  // abandons what it had
  EXPECT_EQ(moved.layer(), 1);
  EXPECT_TRUE(Admit(Request()).valid());
}

TEST_F(SessionTest, ASwappedInSlotIsTheLayersOwn) {
  Step(Request(), {.token_count = 1, .log_length = 0});
  StepLease lease = Admit(Request());
  SlotLease aside = *lease.slots().TakeSpare();
  const int32_t index = aside.index();
  lease.SwapSlot(std::move(aside));
  lease.Commit({.token_count = 2, .log_length = 0}, nullptr);
  EXPECT_EQ(Admit(Request()).slot(), index);
}

TEST_F(SessionTest, ALayerTakesOneStepAtATime) {
  const StepLease lease = Admit(Request("r"));
  EXPECT_EQ(session_->Layers()[0].waiting_calls, 1);
  const auto refused = session_->Admit(Request(), NotJoined);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReason(refused.status()), reason::kSessionBusy);
  EXPECT_EQ(Reason(Request("other")), reason::kSessionBusy);
  EXPECT_TRUE(session_->Admit(PlainStep(1), NotJoined).ok()) << "layers are independent";
}

TEST_F(SessionTest, TheLastReplyWithAnIdIsStored) {
  Step(Request("r"), {.token_count = 1, .log_length = 1}, Reply("one"));
  Step(Request(), {.token_count = 2, .log_length = 2});
  for (int i = 0; i < 2; ++i) {
    const auto again = session_->Admit(Request("r", "p", /*expected=*/0), NotJoined);
    ASSERT_TRUE(again.ok()) << "the id comes before the count: " << again.status();
    ASSERT_NE(again->stored, nullptr);
    EXPECT_EQ(again->stored->output, "one");
    EXPECT_FALSE(again->lease.valid());
  }
  {
    const StepLease busy = Admit(Request());
    EXPECT_NE(session_->Admit(Request("r"), NotJoined)->stored, nullptr) << "nothing has to run for it";
  }
  Step(Request("s"), {.token_count = 3, .log_length = 3}, Reply("two"));
  EXPECT_TRUE(Admit(Request("r")).valid()) << "only the last one is kept";
  EXPECT_EQ(session_->Layers()[0].progress.token_count, 3);
}

TEST_F(SessionTest, AnIdBelongsToOnePayload) {
  {
    const StepLease lease = Admit(Request("r", "p"));
    EXPECT_EQ(Reason(Request("r", "q")), reason::kRequestIdReused);
  }
  Step(Request("r", "p"), {.token_count = 1, .log_length = 1}, Reply("one"));
  const auto refused = session_->Admit(Request("r", "q", /*expected=*/7), NotJoined);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(refused.status()), reason::kRequestIdReused) << "before the count is looked at";
}

TEST_F(SessionTest, TheCountIsCheckedBeforeBusyAndKind) {
  Step(Request(), {.token_count = 4, .log_length = 4});
  const StepLease lease = Admit(Request("", "p", /*expected=*/4));
  const auto refused = session_->Admit(Request("", "p", /*expected=*/3), NotJoined);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReason(refused.status()), reason::kTokenCountMismatch);
  EXPECT_EQ(ErrorMetadata(refused.status()).at("token_count"), "4");
  EXPECT_EQ(ErrorMetadata(refused.status()).at("expected"), "3");
  EXPECT_EQ(Reason(Request("", "p", /*expected=*/4)), reason::kSessionBusy);
}

TEST_F(SessionTest, JoinedCallsGetTheReplyOfTheStepInFlight) {
  StepLease lease = Admit(Request("r"));
  std::vector<std::string> outputs;
  for (int i = 0; i < 3; ++i) {
    const auto admission =
        session_->Admit(Request("r"), [&](absl::StatusOr<StepReplyPtr> reply) { outputs.push_back((*reply)->output); });
    ASSERT_TRUE(admission.ok() && admission->joined);
    EXPECT_FALSE(admission->lease.valid());
  }
  EXPECT_EQ(session_->Layers()[0].waiting_calls, 4);
  EXPECT_TRUE(outputs.empty());
  lease.TakeSlot();
  lease.Commit({.token_count = 1, .log_length = 1}, Reply("one"));
  EXPECT_EQ(outputs, std::vector<std::string>(3, "one"));
  EXPECT_EQ(session_->Layers()[0].waiting_calls, 0);
}

TEST_F(SessionTest, JoinedCallsOfAFailedStepAreToldToTryAgain) {
  absl::Status told;
  {
    const StepLease lease = Admit(Request("r"));
    ASSERT_TRUE(
        session_->Admit(Request("r"), [&](absl::StatusOr<StepReplyPtr> reply) { told = reply.status(); })->joined);
  }
  EXPECT_EQ(ErrorReason(told), reason::kSessionBusy);
  EXPECT_TRUE(Admit(Request("r")).valid());
}

TEST_F(SessionTest, AJoinedStepIsNotCancelled) {
  StepLease alone = Admit(Request("r"));
  alone.TakeSlot();
  EXPECT_TRUE(alone.TryCancel());
  EXPECT_FALSE(alone.valid());
  EXPECT_TRUE(Admit(Request()).fresh());

  StepLease wanted = Admit(Request("r"));
  std::string output;
  ASSERT_TRUE(
      session_->Admit(Request("r"), [&](absl::StatusOr<StepReplyPtr> reply) { output = (*reply)->output; })->joined);
  EXPECT_FALSE(wanted.TryCancel());
  ASSERT_TRUE(wanted.valid());
  wanted.TakeSlot();
  wanted.Commit({.token_count = 1, .log_length = 1}, Reply("one"));
  EXPECT_EQ(output, "one");
}

TEST_F(SessionTest, ACallbackMayCallTheSessionAgain) {
  StepLease lease = Admit(Request("r"));
  bool admitted = false;
  ASSERT_TRUE(
      session_
          ->Admit(Request("r"),
                  [&](const absl::StatusOr<StepReplyPtr>&) { admitted = session_->Admit(Request(), NotJoined).ok(); })
          ->joined);
  lease.TakeSlot();
  lease.Commit({.token_count = 1, .log_length = 1}, Reply("one"));
  EXPECT_TRUE(admitted) << "no lock is held while callbacks run";
}

TEST_F(SessionTest, AllLayersAreLockedTogetherOrNotAtAll) {
  {
    const StepLease step = std::move(session_->Admit(PlainStep(1), NotJoined)->lease);
    EXPECT_EQ(ErrorReason(session_->LockAll().status()), reason::kSessionBusy);
    EXPECT_EQ(ErrorReason(session_->MarkDeleted()), reason::kSessionBusy);
  }
  {
    auto all = session_->LockAll();
    ASSERT_TRUE(all.ok());
    EXPECT_EQ(all->slot(0), -1);
    EXPECT_EQ(Reason(Request()), reason::kSessionBusy);
    EXPECT_EQ(ErrorReason(session_->LockAll().status()), reason::kSessionBusy);
    EXPECT_EQ(ErrorReason(session_->MarkDeleted()), reason::kSessionBusy);
    const int32_t slot = all->TakeSlot(1);
    EXPECT_EQ(all->TakeSlot(1), slot);
    all->SetLayer(1, {.token_count = 9, .log_length = 3}, InputKind::kDeltaRule);
    SessionLease moved = *std::move(all);
    EXPECT_EQ(moved.slot(1), slot);
  }
  EXPECT_EQ(session_->Layers()[1].progress.token_count, 9);
  EXPECT_TRUE(Admit(Request()).valid());
}

TEST_F(SessionTest, ADeletedOneTakesNoSteps) {
  Step(Request("r"), {.token_count = 1, .log_length = 1}, Reply("one"));
  ASSERT_TRUE(session_->MarkDeleted().ok());
  EXPECT_EQ(Reason(Request()), reason::kSessionNotFound);
  EXPECT_EQ(Reason(Request("r")), reason::kSessionNotFound);
}

TEST_F(SessionTest, ALeaseKeepsItsSessionAlive) {
  StepLease lease = Admit(Request());
  lease.TakeSlot();
  session_.reset();
  EXPECT_GT(world_.store.used_bytes(), 0);
  EXPECT_EQ(lease.session().id(), "a");
  lease.Commit({.token_count = 1, .log_length = 1}, nullptr);
  EXPECT_EQ(world_.store.used_bytes(), 0);
}

TEST_F(SessionTest, LayersAreTheSpecsAndKindsAreFixed) {
  StepRequest request = Request();
  request.layer = 2;
  EXPECT_EQ(Reason(request), reason::kLayerNotGdn);
  request.layer = -1;
  EXPECT_EQ(Reason(request), reason::kLayerNotGdn);
  request = Request();
  request.kind = InputKind::kHiddenStates;
  EXPECT_EQ(Reason(request), reason::kInputNeedsModel);

  session_ = world_.MakeSession(ModelSessionSpec());
  request.layer = 0;
  const auto refused = session_->Admit(request, NotJoined);
  EXPECT_EQ(ErrorReason(refused.status()), reason::kLayerNotGdn);
  EXPECT_EQ(ErrorMetadata(refused.status()).at("expected"), "1,2,5");
  request.layer = 5;
  EXPECT_EQ(*session_->LayerIndex(5), 2u);
  Step(request, {.token_count = 1, .log_length = 1});
  request.kind = InputKind::kProjected;
  const auto mismatch = session_->Admit(request, NotJoined);
  EXPECT_EQ(mismatch.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(mismatch.status()), reason::kInputKindMismatch);
  request.layer = 1;
  EXPECT_TRUE(Admit(request).valid()) << "another layer may take another kind";
}

}  // namespace
}  // namespace gdn
