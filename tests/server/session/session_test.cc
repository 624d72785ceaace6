#include "server/session/session.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/count_limits.h"
#include "base/error.h"
#include "tests/server/admission/inline_flows.h"
#include "tests/server/session/session_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::session_test {
namespace {

TEST_F(SessionTest, BeginsFresh) {
  for (const LayerInfo& info : session_->Layers()) {
    EXPECT_EQ(info.progress.token_count, 0);
    EXPECT_EQ(info.kind, InputKind::kNone);
    EXPECT_EQ(info.waiting_calls, 0);
  }
  const StepLease lease = Admit(Request());
  EXPECT_TRUE(lease.fresh());
  EXPECT_EQ(lease.slot(), -1);
  EXPECT_EQ(lease.before().token_count, 0);
  EXPECT_EQ(lease.pool()->view().layout.dims(), session_->spec().dims);
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
    EXPECT_TRUE(lease.PrepareDecode().ok());
  }
  EXPECT_TRUE(Admit(Request()).fresh()) << "the slot it took is given back";
  EXPECT_EQ(session_->Layers()[0].kind, InputKind::kNone);
  Step(Request("r"), {.token_count = 1}, Reply("x"));  // the id was not used up
  { StepLease lease = Admit(Request()); }
  EXPECT_FALSE(Admit(Request()).fresh()) << "a slot with a state in it stays";
  EXPECT_EQ(session_->Layers()[0].progress.token_count, 1);
}

TEST_F(SessionTest, AMovedLeaseIsTheSameRight) {
  StepLease lease = Admit(Request());
  StepLease moved = std::move(lease);
  EXPECT_FALSE(lease.valid());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): what this is about
  EXPECT_EQ(Reason(Request()), reason::kSessionBusy);
  moved = AdmitStep(session_, PlainStep(1));  // abandons what it had
  EXPECT_EQ(moved.layer(), 1);
  EXPECT_TRUE(Admit(Request()).valid());
}

TEST_F(SessionTest, ALayerTakesOneStepAtATime) {
  const StepLease lease = Admit(Request("r"));
  EXPECT_EQ(session_->Layers()[0].waiting_calls, 1);
  EXPECT_EQ(TryAdmit(Request()).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Reason(Request()), reason::kSessionBusy);
  EXPECT_EQ(Reason(Request("other")), reason::kSessionBusy);
  EXPECT_TRUE(TryAdmit(PlainStep(1)).ok()) << "layers are independent";
}

TEST_F(SessionTest, TheLastReplyWithAnIdIsStored) {
  Step(Request("r"), {.token_count = 1, .log_length = 1}, Reply("one"));
  Step(Request(), {.token_count = 2, .log_length = 2});
  for (int i = 0; i < 2; ++i) {
    const auto again = TryAdmit(Request("r", "p", /*expected=*/0));
    ASSERT_TRUE(again.ok()) << "the id comes before the count: " << again.status();
    ASSERT_NE(again->stored, nullptr);
    EXPECT_EQ(again->stored->output, "one");
    EXPECT_EQ(again->stored->request_id, "r");
    EXPECT_FALSE(again->lease.valid());
  }
  {
    const StepLease busy = Admit(Request());
    EXPECT_NE(TryAdmit(Request("r"))->stored, nullptr) << "nothing has to run for it";
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
  const auto refused = TryAdmit(Request("r", "q", /*expected=*/7));
  ExpectError(refused.status(), absl::StatusCode::kInvalidArgument, reason::kRequestIdReused,
              "before the count is looked at");
}

TEST_F(SessionTest, RefusesAStepThatWouldPassTheLastCount) {
  Step(Request(), {.token_count = kMaxTokenCount - 3});
  StepRequest request = Request();
  request.tokens = 4;
  const absl::Status refused = TryAdmit(request).status();
  ExpectError(refused, absl::StatusCode::kOutOfRange, reason::kCountLimit);
  EXPECT_EQ(ErrorMetadata(refused).at("found"), std::to_string(kMaxTokenCount - 3));
  request.tokens = 3;
  Step(request, {.token_count = kMaxTokenCount});
  EXPECT_EQ(Reason(Request()), reason::kCountLimit);
  EXPECT_EQ(session_->Layers()[0].progress.token_count, kMaxTokenCount);
}

// Every reason to refuse a step at once, taken away one after the other in the order in which they are looked at.
TEST_F(SessionTest, LooksAtIdThenEpochThenCountThenBusyThenDraftThenKind) {
  session_ = world_.MakeSession(ModelSessionSpec());
  StepRequest first = PlainStep(1);
  first.kind = InputKind::kHiddenStates;
  first.request_id = "r";
  Step(first, {.token_count = 4, .log_length = 4, .draft_length = 2}, Reply("one"));
  {
    StepRequest request = first;
    request.epoch = 9;
    EXPECT_NE(TryAdmit(request)->stored, nullptr) << "a stored reply is one in any epoch";
    request.request_id = "s";
    request.expected_token_count = 3;
    request.kind = InputKind::kProjected;
    const absl::Status epoch = TryAdmit(request).status();
    ExpectError(epoch, absl::StatusCode::kAborted, reason::kEpochMismatch);
    EXPECT_EQ(ErrorMetadata(epoch).at("epoch"), "1");
    EXPECT_EQ(ErrorMetadata(epoch).at("expected"), "9");
    EXPECT_EQ(ErrorMetadata(epoch).at("token_count"), "4");
    request.epoch = 1;
    const absl::Status count = TryAdmit(request).status();
    ExpectError(count, absl::StatusCode::kAborted, reason::kTokenCountMismatch);
    EXPECT_EQ(ErrorMetadata(count).at("token_count"), "4");
    EXPECT_EQ(ErrorMetadata(count).at("expected"), "3");
    request.expected_token_count = 4;
    const absl::Status draft = TryAdmit(request).status();
    ExpectError(draft, absl::StatusCode::kFailedPrecondition, reason::kDraftPending);
    EXPECT_EQ(ErrorMetadata(draft).at("draft_length"), "2");
    GDN_ASSERT_OK_AND_ASSIGN(auto accept, session_->AdmitAccept(PinOf(session_), {.accepted_tokens = 0}));
    EXPECT_EQ(Reason(request), reason::kSessionBusy) << "the draft is being settled";
    Finish(std::move(accept.front()), {.token_count = 4, .log_length = 4});
    EXPECT_EQ(Reason(request), reason::kInputKindMismatch);
    request.kind = InputKind::kHiddenStates;
    EXPECT_TRUE(TryAdmit(request)->lease.valid());
  }
}

TEST_F(SessionTest, JoinedCallsGetTheReplyOfTheStepInFlight) {
  StepLease lease = Admit(Request("r"));
  std::array<Joiner, 3> joiners;
  for (Joiner& joiner : joiners) {
    const auto admission = TryAdmit(Request("r"), &joiner);
    ASSERT_TRUE(admission.ok() && admission->joined);
    EXPECT_FALSE(admission->lease.valid());
  }
  EXPECT_EQ(session_->Layers()[0].waiting_calls, 4);
  for (const Joiner& joiner : joiners) EXPECT_TRUE(absl::IsUnavailable(joiner.call.reply.status()));
  Finish(std::move(lease), {.token_count = 1, .log_length = 1}, Reply("one"));
  for (const Joiner& joiner : joiners) EXPECT_EQ(joiner.call.reply.value()->output, "one");
  EXPECT_EQ(session_->Layers()[0].waiting_calls, 0);
}

TEST_F(SessionTest, JoinedCallsOfAFailedStepAreToldToTryAgain) {
  Joiner joiner;
  {
    const StepLease lease = Admit(Request("r"));
    ASSERT_TRUE(TryAdmit(Request("r"), &joiner)->joined);
  }
  EXPECT_EQ(ErrorReason(joiner.call.reply.status()), reason::kSessionBusy);
  EXPECT_TRUE(Admit(Request("r")).valid());
}

TEST_F(SessionTest, AJoinedStepIsNotCancelled) {
  StepLease alone = Admit(Request("r"));
  EXPECT_TRUE(alone.PrepareDecode().ok());
  EXPECT_TRUE(alone.TryCancel());
  EXPECT_FALSE(alone.valid());
  EXPECT_TRUE(Admit(Request()).fresh());

  StepLease wanted = Admit(Request("r"));
  Joiner joiner;
  ASSERT_TRUE(TryAdmit(Request("r"), &joiner)->joined);
  EXPECT_FALSE(wanted.TryCancel());
  ASSERT_TRUE(wanted.valid());
  Finish(std::move(wanted), {.token_count = 1, .log_length = 1}, Reply("one"));
  EXPECT_EQ(joiner.call.reply.value()->output, "one");
}

TEST_F(SessionTest, ACallThatHasJoinedMayCallTheSessionAtOnce) {
  StepLease lease = Admit(Request("r"));
  Joiner joiner;
  bool admitted = false;
  const auto again = [&](const absl::Status& /*ended*/) { admitted = TryAdmit(Request()).ok(); };
  ASSERT_TRUE(TryAdmit(Request("r"), &joiner)->joined);
  InlineFlows flows;
  flows.group.Spawn(EndOf(joiner.ended), again);
  Finish(std::move(lease), {.token_count = 1, .log_length = 1}, Reply("one"));
  EXPECT_TRUE(admitted) << "no lock is held while calls that have joined go on";
}

TEST_F(SessionTest, ProgressIsHeardOfAfterEveryCommit) {
  std::vector<int64_t> counts;
  world_.environment.on_progress = [&](const std::shared_ptr<Session>& session) {
    counts.push_back(session->Layers()[0].progress.token_count);
  };
  Step(Request(), {.token_count = 3});
  { const StepLease abandoned = Admit(Request()); }
  Step(Request(), {.token_count = 4});
  EXPECT_EQ(counts, (std::vector<int64_t>{3, 4}));
}

TEST_F(SessionTest, StoredRepliesCountAgainstTheirBudget) {
  EXPECT_EQ(world_.environment.replies().bytes(), 0);
  Finish(Admit(Request()), {.token_count = 1}, nullptr);
  EXPECT_EQ(world_.environment.replies().bytes(), 0) << "nothing is kept of a step without an id";
  Finish(Admit(Request("r")), {.token_count = 2}, Reply(std::string(50, 'x')));
  EXPECT_EQ(world_.environment.replies().bytes(), 50);
  Finish(Admit(Request("s")), {.token_count = 3}, Reply("12345"));
  EXPECT_EQ(world_.environment.replies().bytes(), 5) << "the new reply takes the place of the old";
  session_.reset();
  EXPECT_EQ(world_.environment.replies().bytes(), 0);
}

TEST_F(SessionTest, OverTheBudgetTheOldestOutputsGoAndTheirStepsStayDone) {
  const auto other = world_.MakeSession(session_->spec(), "b");
  Finish(Admit(Request("r")), {.token_count = 7}, Reply(std::string(60, 'x')));
  Finish(AdmitStep(other, Request("s")), {.token_count = 8}, Reply(std::string(60, 'y')));
  EXPECT_EQ(world_.environment.replies().bytes(), 60) << "100 are allowed";
  EXPECT_EQ(world_.environment.replies().dropped(), 1);
  const absl::Status dropped = TryAdmit(Request("r")).status();
  ExpectError(dropped, absl::StatusCode::kAborted, reason::kReplyDropped);
  EXPECT_EQ(ErrorMetadata(dropped).at("token_count"), "7");
  StepRequest another = Request("r");
  another.payload = Hash128{.high = 1, .low = 2};
  EXPECT_EQ(Reason(another), reason::kRequestIdReused) << "the payload's hash is still known";
  EXPECT_EQ(session_->Layers()[0].progress.token_count, 7);
  const auto kept = other->Admit(PinOf(other), Request("s"), nullptr);
  ASSERT_TRUE(kept.ok() && kept->stored != nullptr);
  EXPECT_EQ(kept->stored->output, std::string(60, 'y'));
  EXPECT_TRUE(Admit(Request("t")).valid()) << "the next step goes on";
}

TEST_F(SessionTest, ThePrincipalThatKeepsMostGivesUpItsOutputsFirst) {
  const ByteAccountPtr hog = world_.ledger.AccountOf("", "ipv4:10.0.0.1:1");
  const ByteAccountPtr modest = world_.ledger.AccountOf("", "ipv4:10.0.0.2:1");
  const auto make = [&](const std::string& id, const ByteAccountPtr& account) {
    auto claims = world_.store.Reserve(session_->spec().dims, static_cast<int32_t>(session_->spec().layers.size()));
    return std::make_shared<Session>(
        SessionInit{.id = id, .spec = session_->spec(), .affinity = id, .account = account}, *std::move(claims),
        &world_.environment);
  };
  const auto kept = [&](const std::shared_ptr<Session>& session) {
    const auto admission = session->Admit(PinOf(session), Request("r"), nullptr);
    return admission.ok() && admission->stored != nullptr;
  };
  const auto first = make("first", modest);
  Finish(AdmitStep(first, Request("r")), {.token_count = 1}, Reply(std::string(20, 'm')));
  std::vector<std::shared_ptr<Session>> many;
  for (int i = 0; i < 10; ++i) {
    many.push_back(make("hog-" + std::to_string(i), hog));
    Finish(AdmitStep(many.back(), Request("r")), {.token_count = 1}, Reply(std::string(30, 'h')));
  }
  EXPECT_TRUE(kept(first));
  EXPECT_EQ(world_.environment.replies().dropped(), 8);
  EXPECT_TRUE(kept(many[9]) && kept(many[8]));
  EXPECT_FALSE(kept(many[7]));
}

TEST_F(SessionTest, ADeletedOneTakesNoStepsAndGivesUpWhatItHas) {
  Step(Request("r"), {.token_count = 1, .log_length = 1}, Reply("one"));
  SessionPin pin;
  MarkDeleted();
  EXPECT_EQ(session_->TryPin(&pin), Session::PinOutcome::kNotResident);
  EXPECT_FALSE(pin.valid());
  EXPECT_EQ(ErrorReason(session_->CheckAlive()), reason::kSessionNotFound);
  EXPECT_EQ(ErrorReason(session_->Admit(SessionPin(), Request("r"), nullptr).status()), reason::kSessionNotFound);
  EXPECT_EQ(ErrorReason(session_->AdmitAccept(pin, {}).status()), reason::kSessionNotFound);
  EXPECT_EQ(world_.store.used_bytes(), 0);
  EXPECT_EQ(world_.environment.replies().bytes(), 0);
}

TEST_F(SessionTest, ALeaseKeepsItsSessionAliveAndPinned) {
  StepLease lease = Admit(Request());
  EXPECT_FALSE(session_->TryLock().valid());
  session_.reset();
  EXPECT_GT(world_.store.used_bytes(), 0);
  EXPECT_EQ(lease.session().id(), "a");
  Finish(std::move(lease), {.token_count = 1, .log_length = 1});
  EXPECT_EQ(world_.store.used_bytes(), 0);
}

TEST_F(SessionTest, ALockedSessionMakesPinsWait) {
  SessionLease lease = session_->TryLock();
  ASSERT_TRUE(lease.valid());
  SessionPin pin;
  EXPECT_EQ(session_->TryPin(&pin), Session::PinOutcome::kWait);
  SessionLease moved = std::move(lease);
  EXPECT_EQ(session_->TryPin(&pin), Session::PinOutcome::kWait);
  SessionPin from_lock = std::move(moved).IntoPin();
  EXPECT_TRUE(from_lock.valid());
  EXPECT_EQ(session_->TryPin(&pin), Session::PinOutcome::kPinned);
  EXPECT_FALSE(session_->TryLock().valid());
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
  const absl::Status refused = TryAdmit(request).status();
  EXPECT_EQ(ErrorReason(refused), reason::kLayerNotGdn);
  EXPECT_EQ(ErrorMetadata(refused).at("expected"), "1-2,5");
  request.layer = 5;
  EXPECT_EQ(*session_->LayerIndex(5), 2u);
  Step(request, {.token_count = 1, .log_length = 1});
  request.kind = InputKind::kProjected;
  const absl::Status mismatch = TryAdmit(request).status();
  ExpectError(mismatch, absl::StatusCode::kFailedPrecondition, reason::kInputKindMismatch);
  request.layer = 1;
  EXPECT_TRUE(Admit(request).valid()) << "another layer may take another kind";
}

TEST_F(SessionTest, TellsHowMuchOfItIsNotDurable) {
  EXPECT_TRUE(session_->undurable().any) << "its making";
  session_->NoteDurable(session_->TryLock().changes(), {0, 0}, {});
  EXPECT_FALSE(session_->undurable().any);
  EXPECT_EQ(session_->undurable().since, session_->born());
  Step(Request(), {.token_count = 7});
  Step(PlainStep(1), {.token_count = 3});
  EXPECT_TRUE(session_->undurable().any);
  EXPECT_EQ(session_->undurable().tokens, 7) << "of the layer that has moved most";
  const uint64_t changes = session_->TryLock().changes();
  Step(PlainStep(1), {.token_count = 5});
  const Session::Moment when = session_->Now();
  session_->NoteDurable(changes, {7, 3}, when);
  EXPECT_TRUE(session_->undurable().any) << "a step was taken since that copy";
  EXPECT_EQ(session_->undurable().tokens, 2);
  EXPECT_EQ(session_->undurable().since, when.at);
  EXPECT_EQ(session_->durable_time(), when.shown);
  EXPECT_EQ(session_->Layers()[0].durable_token_count, 7);
  session_->NoteDurable(session_->TryLock().changes(), {7, 5}, when);
  EXPECT_FALSE(session_->undurable().any);
}

}  // namespace
}  // namespace gdn::session_test
