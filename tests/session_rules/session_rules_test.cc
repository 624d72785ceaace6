#include "session_rules/session_rules.h"

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/count_limits.h"
#include "base/error.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::session_rules_test {
namespace {

const std::string& Id() {
  static const std::string id = "a";
  return id;
}

constexpr Hash128 kPayload{.high = 1, .low = 2};
constexpr Hash128 kOther{.high = 3, .low = 4};

StepRequest RequestOf(std::string_view id, const Hash128& payload = kPayload) {
  return {.request_id = id, .payload = payload};
}

std::string Reason(const SessionFacts& session, const LayerFacts& layer, const StepRequest& request) {
  return ErrorReason(AnswerStep(session, layer, request).status());
}

TEST(AnswerStep, TakesAStepThatNothingSpeaksAgainst) {
  const SessionFacts session{.id = Id(), .epoch = 2};
  const LayerFacts layer{.token_count = 7, .kind = InputKind::kHiddenStates};
  StepRequest request;
  EXPECT_EQ(*AnswerStep(session, layer, request), StepAnswer::kGo);
  request.epoch = 2;
  request.expected_token_count = 7;
  EXPECT_EQ(*AnswerStep(session, layer, request), StepAnswer::kGo);
}

TEST(AnswerStep, KnowsARetryByItsIdAndPayload) {
  const SessionFacts session{.id = Id()};
  LayerFacts layer{.token_count = 7, .draft_length = 2, .stored = {.request_id = "r", .payload = kPayload}};
  StepRequest again = RequestOf("r");
  again.epoch = 9;  // the id comes first
  again.expected_token_count = 0;
  EXPECT_EQ(*AnswerStep(session, layer, again), StepAnswer::kStored);
  EXPECT_EQ(Reason(session, layer, RequestOf("r", kOther)), reason::kRequestIdReused);
  EXPECT_EQ(Reason(session, layer, RequestOf("s")), reason::kDraftPending);
  EXPECT_EQ(Reason(session, layer, RequestOf("")), reason::kDraftPending);

  layer.output_dropped = true;
  const absl::Status dropped = AnswerStep(session, layer, again).status();
  ExpectError(dropped, absl::StatusCode::kAborted, reason::kReplyDropped);
  EXPECT_EQ(ErrorMetadata(dropped)["token_count"], "7");
  EXPECT_EQ(Reason(session, layer, RequestOf("r", kOther)), reason::kRequestIdReused) << "the payload comes first";
}

TEST(AnswerStep, AStepWithoutAnIdIsNoRetryOfOneWithoutAnId) {
  EXPECT_EQ(*AnswerStep({.id = Id()}, {}, RequestOf("")), StepAnswer::kGo);
  EXPECT_EQ(Reason({.id = Id()}, {.busy = true}, RequestOf("")), reason::kSessionBusy);
}

TEST(AnswerStep, JoinsTheSameStepWhileItRuns) {
  const SessionFacts session{.id = Id()};
  LayerFacts layer{.busy = true,
                   .in_flight = {.request_id = "r", .payload = kPayload},
                   .stored = {.request_id = "q", .payload = kOther}};
  EXPECT_EQ(*AnswerStep(session, layer, RequestOf("r")), StepAnswer::kJoin);
  EXPECT_EQ(Reason(session, layer, RequestOf("r", kOther)), reason::kRequestIdReused);
  EXPECT_EQ(*AnswerStep(session, layer, RequestOf("q", kOther)), StepAnswer::kStored) << "nothing has to run for it";
  EXPECT_EQ(Reason(session, layer, RequestOf("s")), reason::kSessionBusy);
  layer.busy = false;
  EXPECT_EQ(*AnswerStep(session, layer, RequestOf("r")), StepAnswer::kGo) << "it has ended, and did not happen";
}

// Every reason to refuse a step at once, taken away one after the other in the order in which they are looked at.
TEST(AnswerStep, LooksAtEpochThenCountThenBusyThenDraftThenKindThenLimit) {
  SessionFacts session{.id = Id(), .epoch = 2, .has_model = false};
  LayerFacts layer{.layer = 5, .token_count = 7, .draft_length = 3, .kind = InputKind::kHiddenStates, .busy = true};
  StepRequest request{.kind = InputKind::kProjected, .tokens = kMaxTokenCount, .epoch = 1, .expected_token_count = 6};
  const absl::Status epoch = AnswerStep(session, layer, request).status();
  ExpectError(epoch, absl::StatusCode::kAborted, reason::kEpochMismatch);
  EXPECT_EQ(ErrorMetadata(epoch)["token_count"], "7");
  request.epoch = 2;
  EXPECT_EQ(Reason(session, layer, request), reason::kTokenCountMismatch);
  request.expected_token_count = 7;
  EXPECT_EQ(Reason(session, layer, request), reason::kSessionBusy);
  layer.busy = false;
  const absl::Status draft = AnswerStep(session, layer, request).status();
  ExpectError(draft, absl::StatusCode::kFailedPrecondition, reason::kDraftPending);
  EXPECT_EQ(ErrorMetadata(draft)["layer"], "5");
  layer.draft_length = 0;
  EXPECT_EQ(Reason(session, layer, request), reason::kInputNeedsModel);
  session.has_model = true;
  EXPECT_EQ(Reason(session, layer, request), reason::kInputKindMismatch);
  request.kind = InputKind::kHiddenStates;
  EXPECT_EQ(Reason(session, layer, request), reason::kCountLimit);
  request.tokens = kMaxTokenCount - 7;
  EXPECT_EQ(*AnswerStep(session, layer, request), StepAnswer::kGo);
}

TEST(AnswerStep, AcceptsTheDraftBeforeItLooksAtTheCount) {
  const SessionFacts session{.id = Id()};
  LayerFacts layer{.token_count = 7, .draft_length = 3};
  StepRequest request;
  request.accept_before = Acceptance{.accepted_tokens = 2};
  EXPECT_EQ(*AnswerStep(session, layer, request), StepAnswer::kGo);
  request.expected_token_count = 7;
  const absl::Status count = AnswerStep(session, layer, request).status();
  ExpectError(count, absl::StatusCode::kAborted, reason::kTokenCountMismatch);
  EXPECT_EQ(ErrorMetadata(count)["token_count"], "9") << "after the acceptance";
  request.expected_token_count = 9;
  EXPECT_EQ(*AnswerStep(session, layer, request), StepAnswer::kGo);
  request.accept_before->accepted_tokens = 4;
  EXPECT_EQ(Reason(session, layer, request), reason::kTooManyTokens);
  const std::vector<int32_t> parents = {-1, 0, 0};
  layer.draft_parents = parents;
  request.accept_before = Acceptance{.accepted_tokens = 2, .path = {1, 2}};
  EXPECT_EQ(Reason(session, layer, request), reason::kValueOutOfRange);
  request.accept_before->path = {0, 2};
  EXPECT_EQ(*AnswerStep(session, layer, request), StepAnswer::kGo);
  layer.busy = true;
  EXPECT_EQ(Reason(session, layer, request), reason::kSessionBusy) << "the draft may not be there yet";
}

TEST(AnswerStep, AnAcceptanceWithoutADraftIsForNoTokens) {
  const SessionFacts session{.id = Id()};
  const LayerFacts layer{.token_count = 7};
  StepRequest request;
  request.accept_before = Acceptance{};
  EXPECT_EQ(*AnswerStep(session, layer, request), StepAnswer::kGo);
  request.accept_before->accepted_tokens = 1;
  EXPECT_EQ(Reason(session, layer, request), reason::kTooManyTokens);
  request.expected_token_count = 9;  // sent again without an id, after it has happened with a step of one token
  EXPECT_EQ(Reason(session, layer, request), reason::kTokenCountMismatch);
}

TEST(ReadAcceptance, TakesACountOrAPath) {
  GDN_ASSERT_OK_AND_ASSIGN(const Acceptance count, ReadAcceptance(3, {}, /*max_draft=*/4));
  EXPECT_EQ(count.accepted_tokens, 3);
  EXPECT_EQ(count.tokens(), (std::vector<int32_t>{0, 1, 2}));
  GDN_ASSERT_OK_AND_ASSIGN(const Acceptance path, ReadAcceptance(0, {0, 2}, /*max_draft=*/4));
  EXPECT_EQ(path.accepted_tokens, 2);
  EXPECT_EQ(path.tokens(), (std::vector<int32_t>{0, 2}));
  GDN_ASSERT_OK_AND_ASSIGN(const Acceptance first, ReadAcceptance(0, {0, 1}, /*max_draft=*/4));
  EXPECT_EQ(first.accepted_tokens, 2);
  EXPECT_TRUE(first.path.empty()) << "the first tokens are a count";
  EXPECT_TRUE(ReadAcceptance(std::numeric_limits<int32_t>::max(), {}, /*max_draft=*/4).ok())
      << "the draft says how many there are";

  EXPECT_EQ(ErrorReason(ReadAcceptance(1, {0}, 4).status()), reason::kInvalidLengths);
  EXPECT_EQ(ErrorReason(ReadAcceptance(0, {0, 1, 2, 3, 4}, 4).status()), reason::kTooManyTokens);
  EXPECT_EQ(ErrorReason(ReadAcceptance(-1, {}, 4).status()), reason::kTooManyTokens);
}

TEST(WasAccepted, LooksAtTheIdThenTheEpochThenTheDrafts) {
  SessionFacts session{.id = Id(), .epoch = 2, .accept_request_id = "r", .accepted_tokens = 2};
  const std::vector<LayerFacts> layers = {{.token_count = 9}, {.layer = 2, .token_count = 7, .draft_length = 3}};
  EXPECT_TRUE(*WasAccepted(session, layers, {.accepted_tokens = 2, .request_id = "r", .epoch = 1}));
  const std::vector<int32_t> path = {0, 2};
  EXPECT_EQ(ErrorReason(WasAccepted(session, layers, {.accepted_tokens = 1, .request_id = "r"}).status()),
            reason::kRequestIdReused);
  EXPECT_EQ(ErrorReason(WasAccepted(session, layers, {.accepted_tokens = 2, .path = path, .request_id = "r"}).status()),
            reason::kRequestIdReused);
  session.accepted_path = path;
  EXPECT_TRUE(*WasAccepted(session, layers, {.accepted_tokens = 2, .path = path, .request_id = "r"}));

  const absl::Status epoch = WasAccepted(session, layers, {.accepted_tokens = 4, .epoch = 1}).status();
  ExpectError(epoch, absl::StatusCode::kAborted, reason::kEpochMismatch);
  EXPECT_EQ(ErrorMetadata(epoch)["token_count"], "7") << "the least of its layers";
  const absl::Status longer = WasAccepted(session, layers, {.accepted_tokens = 4, .epoch = 2}).status();
  ExpectError(longer, absl::StatusCode::kInvalidArgument, reason::kTooManyTokens);
  EXPECT_EQ(ErrorMetadata(longer)["layer"], "2");
  EXPECT_FALSE(*WasAccepted(session, layers, {.accepted_tokens = 3}));
  EXPECT_FALSE(*WasAccepted(session, layers, {.accepted_tokens = 0, .request_id = "s"}));
}

TEST(WasAccepted, NeedsADraftAndNoRunningStep) {
  const SessionFacts session{.id = Id()};
  std::vector<LayerFacts> layers = {{}, {.layer = 2}};
  EXPECT_EQ(ErrorReason(WasAccepted(session, layers, {.accepted_tokens = 1}).status()), reason::kTooManyTokens);
  EXPECT_FALSE(*WasAccepted(session, layers, {.accepted_tokens = 0})) << "there is nothing to do";
  EXPECT_EQ(ErrorReason(WasAccepted(session, {}, {.accepted_tokens = 1}).status()), reason::kTooManyTokens);
  layers[0].busy = true;
  layers[1].draft_length = 1;
  EXPECT_EQ(ErrorReason(WasAccepted(session, layers, {.accepted_tokens = 1}).status()), reason::kSessionBusy);
}

TEST(WasAccepted, APathFollowsEveryTree) {
  const SessionFacts session{.id = Id()};
  const std::vector<int32_t> parents = {-1, 0, 0, 1};
  const std::vector<LayerFacts> layers = {{.draft_length = 4, .draft_parents = parents},
                                          {.layer = 1, .draft_length = 4}};
  EXPECT_FALSE(*WasAccepted(session, layers, {.accepted_tokens = 2}));
  const absl::Status count = WasAccepted(session, layers, {.accepted_tokens = 3}).status();
  ExpectError(count, absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange);
  EXPECT_EQ(ErrorMetadata(count)["layer"], "0") << "the first three are no path of the tree";
  const absl::Status path = WasAccepted(session, layers, {.accepted_tokens = 2, .path = {0, 2}}).status();
  ExpectError(path, absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange);
  EXPECT_EQ(ErrorMetadata(path)["layer"], "1") << "no path of the chain";
  EXPECT_EQ(ErrorMetadata(path)["session"], "sessions/a");
}

}  // namespace
}  // namespace gdn::session_rules_test
