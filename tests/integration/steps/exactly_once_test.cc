// A step is applied exactly once: request ids, expected token counts, joined calls, and calls that end before their
// step.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/step_parts.h"
#include "tests/server/batcher/engine_gate.h"

namespace gdn::exactly_once_test {
namespace {

constexpr char kSet[] = "qwen3_next_1";
constexpr int kLayer = 0;
constexpr int kPrompt = 37;

class ExactlyOnce : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"a", "reference"}) ASSERT_TRUE(caller_.Create(id, "next").ok());
  }

  v1::PrefillRequest Prompt(const std::string& id, const std::string& request_id) const {
    return WithId(PrefillOf(id, kLayer, inputs_.Slice(0, kPrompt)), request_id);
  }
  v1::DecodeRequest Step(const std::vector<std::string>& ids, int token, const std::string& request_id) const {
    return WithId(DecodeOf(ids, kLayer, std::vector<Tokens>(ids.size(), inputs_.Token(kPrompt + token))), request_id);
  }
  std::future<Outcome<v1::DecodeResponse>> Later(const v1::DecodeRequest& request) const {
    return std::async(std::launch::async, [this, request] { return caller_.Decode(request); });
  }

  TestServer server_{{.models = {{"next", GoldenPath(kSet)}}}};
  const Caller caller_{server_};
  const Tokens inputs_ = GoldenInputs(kSet, kLayer);
};

TEST_F(ExactlyOnce, ARepeatedPrefillGivesTheSameBytesAndMovesTheStateOnce) {
  ASSERT_TRUE(caller_.Prefill(Prompt("reference", "")).ok());
  ASSERT_REPLY(const auto first, caller_.Prefill(Prompt("a", "p")));
  for (int i = 0; i < 3; ++i) {
    ASSERT_REPLY(const auto again, caller_.Prefill(Prompt("a", "p")));
    EXPECT_EQ(again.SerializeAsString(), first.SerializeAsString());
  }
  v1::PrefillRequest shorter = WithId(PrefillOf("a", kLayer, inputs_.Slice(0, kPrompt - 1)), "p");
  EXPECT_TRUE(RefusedAs(caller_.Prefill(shorter), "REQUEST_ID_REUSED"));
  EXPECT_EQ(caller_.TokenCount("a", kLayer), kPrompt);
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(ExactlyOnce, ARepeatedDecodeGivesTheSameBytesAndMovesTheStateOnce) {
  for (const char* id : {"a", "reference"}) ASSERT_TRUE(caller_.Prefill(Prompt(id, "")).ok());
  ASSERT_TRUE(caller_.Decode(Step({"reference"}, 0, "")).ok());
  const auto first = caller_.Decode(Step({"a"}, 0, "d"));
  const auto again = caller_.Decode(Step({"a"}, 0, "d"));
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(again.reply.SerializeAsString(), first.reply.SerializeAsString());
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(ExactlyOnce, StreamsAndUnaryCallsShareTheStoredReply) {
  const auto same = [](const auto& replies) {
    EXPECT_EQ(replies[0].status().code(), 0) << replies[0].status().message();
    EXPECT_EQ(replies[1].SerializeAsString(), replies[0].SerializeAsString());
  };
  grpc::ClientContext context, decode_context;
  const v1::StreamPrefillRequest segment = StreamSegment(Prompt("a", "p"));
  const auto segments = Converse(*server_.stub().StreamPrefill(&context), {segment, segment});
  same(segments);
  EXPECT_EQ(caller_.Prefill(Prompt("a", "p")).reply.SerializeAsString(), segments[0].result().SerializeAsString());
  const v1::StreamDecodeRequest step = StreamStep(Step({"a"}, 0, "d"));
  same(Converse(*server_.stub().StreamDecode(&decode_context), {step, step}));
  EXPECT_EQ(caller_.TokenCount("a", kLayer), kPrompt + 1);
}

TEST_F(ExactlyOnce, ACallInFlightIsJoined) {
  EngineBlocker blocker(server_.batcher());
  std::vector<std::future<Outcome<v1::DecodeResponse>>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(Later(Step({"a"}, 0, "d")));
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 3));
  EXPECT_EQ(server_.batcher().queued_steps(), 1u);
  blocker.Release();
  ASSERT_REPLY(const auto first, calls[0].get());
  for (size_t i = 1; i < calls.size(); ++i) {
    ASSERT_REPLY(const auto joined, calls[i].get());
    EXPECT_EQ(joined.SerializeAsString(), first.SerializeAsString());
  }
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 1);
}

TEST_F(ExactlyOnce, AnIdWithAnotherPayloadIsRefused) {
  ASSERT_TRUE(caller_.Decode(Step({"a"}, 0, "d")).ok());
  const std::string state = caller_.State("a");
  v1::DecodeRequest other_output = Step({"a"}, 0, "d");
  other_output.set_output_dtype(v1::DTYPE_BF16);
  v1::DecodeRequest other_dtype = WithId(DecodeOf({"a"}, kLayer, {inputs_.Token(kPrompt)}, v1::DTYPE_BF16), "d");
  v1::DecodeRequest longer = WithId(DecodeOf({"a"}, kLayer, {inputs_.Slice(kPrompt, 2)}), "d");
  for (const v1::DecodeRequest& request : {Step({"a"}, 1, "d"), other_output, other_dtype, longer}) {
    EXPECT_TRUE(
        RefusedAs(caller_.Decode(request), "REQUEST_ID_REUSED", {{"request_id", "d"}, {"session", "sessions/a"}}));
  }
  EXPECT_EQ(caller_.State("a"), state);

  // In flight as well as done; and ids are each layer's own.
  EngineBlocker blocker(server_.batcher());
  auto call = Later(Step({"a"}, 1, "e"));
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 1));
  EXPECT_EQ(caller_.Decode(Step({"a"}, 2, "e")).reason(), "REQUEST_ID_REUSED");
  blocker.Release();
  EXPECT_TRUE(call.get().ok());
  v1::DecodeRequest other_layer = Step({"a"}, 3, "e");
  other_layer.set_layer(1);
  EXPECT_TRUE(caller_.Decode(other_layer).ok());
}

TEST_F(ExactlyOnce, AStepOfABusyLayerIsRefused) {
  EngineBlocker blocker(server_.batcher());
  auto call = Later(Step({"a"}, 0, "d"));
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 1));
  for (const auto& request : {Step({"a"}, 0, ""), Step({"a"}, 0, "e")}) {
    EXPECT_TRUE(RefusedAs(caller_.Decode(request), "SESSION_BUSY", {{"session", "sessions/a"}}));
  }
  EXPECT_EQ(caller_.Prefill(Prompt("a", "")).reason(), "SESSION_BUSY");
  v1::DecodeRequest other_layer = Step({"a"}, 0, "");
  other_layer.set_layer(1);
  auto unhindered = Later(other_layer);
  EXPECT_TRUE(WaitForQueuedSteps(server_, 2));
  blocker.Release();
  EXPECT_TRUE(call.get().ok());
  EXPECT_TRUE(unhindered.get().ok());
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 1);
}

TEST_F(ExactlyOnce, ABusyRowOfABatchRefusesAllOfItUnlessRowsMayFail) {
  EngineBlocker blocker(server_.batcher());
  auto call = Later(Step({"a"}, 0, "d"));
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 1));
  EXPECT_TRUE(RefusedAs(caller_.Decode(Step({"reference", "a"}, 0, "")), "SESSION_BUSY", {{"session", "sessions/a"}}));
  v1::DecodeRequest partial = Step({"reference", "a"}, 0, "");
  partial.set_partial_ok(true);
  auto rows = Later(partial);
  EXPECT_TRUE(WaitForQueuedSteps(server_, 2));
  blocker.Release();
  ASSERT_REPLY(const auto outcome, rows.get());
  EXPECT_EQ(outcome.row_statuses(0).code(), 0);
  EXPECT_EQ(ErrorInfoOf(outcome.row_statuses(1)).reason(), "SESSION_BUSY");
  EXPECT_TRUE(call.get().ok());
  EXPECT_EQ(caller_.TokenCount("reference", kLayer), 1);
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 1);
  EXPECT_EQ(caller_.State("reference"), caller_.State("a")) << "the same step, once each";
}

TEST_F(ExactlyOnce, TheRequestIdIsLookedAtBeforeTheTokenCountAndThatBeforeBusy) {
  v1::PrefillRequest prompt = Prompt("a", "p");
  prompt.set_expected_token_count(0);
  ASSERT_REPLY(const auto first, caller_.Prefill(prompt));
  EXPECT_EQ(caller_.Prefill(prompt).reply.SerializeAsString(), first.SerializeAsString());
  prompt.set_request_id("q");
  EXPECT_TRUE(RefusedAs(caller_.Prefill(prompt), "TOKEN_COUNT_MISMATCH",
                        {{"token_count", std::to_string(kPrompt)}, {"expected", "0"}}));

  EngineBlocker blocker(server_.batcher());
  v1::DecodeRequest step = Step({"a"}, 0, "d");
  step.add_expected_token_counts(kPrompt);
  auto call = Later(step);
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 1));
  EXPECT_EQ(caller_.Prefill(prompt).reason(), "TOKEN_COUNT_MISMATCH");
  prompt.set_expected_token_count(kPrompt);
  EXPECT_EQ(caller_.Prefill(prompt).reason(), "SESSION_BUSY");
  blocker.Release();
  EXPECT_TRUE(call.get().ok());
  EXPECT_TRUE(caller_.Decode(step).ok());  // stored, though the count has moved on
  EXPECT_EQ(caller_.TokenCount("a", kLayer), kPrompt + 1);
}

TEST_F(ExactlyOnce, ARetriedBatchInAnotherCompositionGivesEachSessionItsStoredRow) {
  const std::vector<std::string> ids = {"b", "c", "d", "e"};
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(caller_.Create(ids[i], "next").ok());
    ASSERT_TRUE(caller_.Prefill(PrefillOf(ids[i], kLayer, inputs_.Slice(0, 3 + static_cast<int64_t>(i)))).ok());
  }
  const auto token = [&](int i) { return inputs_.Token(20 + i); };
  v1::DecodeRequest request = WithId(DecodeOf({"b", "c", "d"}, kLayer, {token(0), token(1), token(2)}), "s");
  ASSERT_REPLY(const auto first, caller_.Decode(request));

  v1::DecodeRequest retry = WithId(DecodeOf({"d", "e", "b"}, kLayer, {token(2), token(3), token(0)}), "s");
  ASSERT_REPLY(const auto again, caller_.Decode(retry));
  EXPECT_EQ(RowBytes(again.output(), 0), RowBytes(first.output(), 2));
  EXPECT_EQ(RowBytes(again.output(), 2), RowBytes(first.output(), 0));
  EXPECT_EQ(std::vector<int64_t>(again.token_counts().begin(), again.token_counts().end()),
            (std::vector<int64_t>{6, 7, 4}));
  ASSERT_TRUE(caller_.Prefill(PrefillOf("reference", kLayer, inputs_.Slice(0, 6))).ok());
  const auto alone = caller_.Decode(DecodeOf({"reference"}, kLayer, {token(3)}));
  EXPECT_EQ(RowBytes(again.output(), 1), RowBytes(alone.reply.output(), 0));
  EXPECT_EQ(caller_.TokenCount("c", kLayer), 5);
}

TEST_F(ExactlyOnce, ACancelledCallThatWaitsLeavesTheState) {
  ASSERT_TRUE(caller_.Prefill(Prompt("a", "")).ok());
  const std::string state = caller_.State("a");
  EngineBlocker blocker(server_.batcher());
  const auto context = caller_.NewContext();
  auto call = std::async(std::launch::async, [&] { return caller_.Decode(*context, Step({"a"}, 0, "d")); });
  EXPECT_TRUE(WaitForQueuedSteps(server_, 1));
  CancelAndSettle(caller_, *context);
  EXPECT_EQ(call.get().status.error_code(), grpc::StatusCode::CANCELLED);
  blocker.Release();
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 0));
  EXPECT_EQ(caller_.State("a"), state);
  EXPECT_TRUE(caller_.Decode(Step({"a"}, 0, "d")).ok());  // its request id was not used up
  EXPECT_EQ(caller_.TokenCount("a", kLayer), kPrompt + 1);
}

TEST_F(ExactlyOnce, AnExpiredCallThatWaitsLeavesTheState) {
  ASSERT_TRUE(caller_.Prefill(Prompt("a", "")).ok());
  const std::string state = caller_.State("a");
  EngineBlocker blocker(server_.batcher());
  const auto context = caller_.NewContext();
  context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(300)));
  auto call = std::async(std::launch::async, [&] { return caller_.Decode(*context, Step({"a"}, 0, "")); });
  EXPECT_EQ(call.get().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  absl::SleepFor(absl::Milliseconds(200));  // the server counts from when it heard of the call
  blocker.Release();
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 0));
  EXPECT_EQ(caller_.State("a"), state);
}

TEST_F(ExactlyOnce, ARetryThatJoinedACancelledCallGetsTheResult) {
  ASSERT_TRUE(caller_.Decode(Step({"reference"}, 0, "")).ok());
  EngineBlocker blocker(server_.batcher());
  const auto context = caller_.NewContext();
  auto original = std::async(std::launch::async, [&] { return caller_.Decode(*context, Step({"a"}, 0, "d")); });
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 1));
  auto retry = Later(Step({"a"}, 0, "d"));
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 2));
  CancelAndSettle(caller_, *context);
  EXPECT_EQ(original.get().status.error_code(), grpc::StatusCode::CANCELLED);
  blocker.Release();
  ASSERT_REPLY(const auto outcome, retry.get());
  EXPECT_EQ(outcome.token_counts(0), 1);
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(ExactlyOnce, ABusySessionIsNotDeletedAndIsExportedOnceItsStepHasEnded) {
  ASSERT_TRUE(caller_.Decode(Step({"reference"}, 0, "")).ok());
  EngineBlocker blocker(server_.batcher());
  auto call = Later(Step({"a"}, 0, ""));
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 1));
  EXPECT_TRUE(RefusedAs(caller_.Delete("a"), "SESSION_BUSY"));
  auto exported = std::async(std::launch::async, [&] { return caller_.State("a"); });
  EXPECT_EQ(exported.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout) << "the step goes first";
  blocker.Release();
  EXPECT_TRUE(call.get().ok());
  EXPECT_EQ(exported.get(), caller_.State("reference"));
  EXPECT_TRUE(caller_.Delete("a").ok());
}

TEST_F(ExactlyOnce, APrefillThatEndsHalfwayLeavesTheStateAsItWas) {
  if (TestBackendName() == "gpu") GTEST_SKIP() << "a card runs all of the prompt in one launch";
  const Tokens prompt = RandomTokens(1500, 3);  // three segments of the engine
  ASSERT_TRUE(caller_.Prefill(Prompt("a", "")).ok());
  ASSERT_TRUE(caller_.Create("fresh", "next").ok());
  for (const std::string id : {"a", "fresh"}) {
    const std::string state = caller_.State(id);
    EngineGate before, halfway;
    before.Post(server_.batcher());
    before.reached.wait();
    const auto context = caller_.NewContext();
    auto call =
        std::async(std::launch::async, [&] { return caller_.Prefill(*context, PrefillOf(id, kLayer, prompt)); });
    EXPECT_TRUE(WaitForQueuedSteps(server_, 1));
    EngineGate begun;
    begun.Post(server_.batcher());
    before.open.count_down();
    begun.reached.wait();  // the prefill has begun, its first segment comes next
    halfway.Post(server_.batcher());
    begun.open.count_down();
    halfway.reached.wait();
    EXPECT_EQ(server_.batcher().queued_steps(), 1u) << "two segments of it are left";
    CancelAndSettle(caller_, *context);
    EXPECT_EQ(call.get().status.error_code(), grpc::StatusCode::CANCELLED);
    halfway.open.count_down();
    EXPECT_TRUE(WaitForCalls(server_, id, kLayer, 0));
    EXPECT_EQ(caller_.State(id), state);
  }
  ASSERT_REPLY(const auto decoded, caller_.Decode(Step({"fresh", "reference"}, 0, "")));
  EXPECT_EQ(RowBytes(decoded.output(), 0), RowBytes(decoded.output(), 1));
  EXPECT_EQ(caller_.State("fresh"), caller_.State("reference"));
}

// ---- Rows of a Step

TEST_F(ExactlyOnce, ADecodeAndAStepOfTheSameRowAreRetriesOfEachOther) {
  for (const char* id : {"a", "reference"}) ASSERT_TRUE(caller_.Prefill(Prompt(id, "")).ok());
  ASSERT_REPLY(const auto decoded, caller_.Decode(Step({"a"}, 0, "d")));
  ASSERT_REPLY(const auto by_step, caller_.Step(AsStep(Step({"a"}, 0, "d"))));
  EXPECT_EQ(by_step.output().data(), decoded.output().data());
  EXPECT_EQ(by_step.token_counts(0), kPrompt + 1);

  ASSERT_REPLY(const auto stepped, caller_.Step(AsStep(Step({"a", "reference"}, 0, "e"))));
  ASSERT_REPLY(const auto by_decode, caller_.Decode(Step({"reference"}, 0, "e")));
  EXPECT_EQ(by_decode.output().data(), TokenBytes(stepped.output(), 1, 1));
  EXPECT_TRUE(RefusedAs(caller_.Decode(Step({"reference"}, 1, "e")), "REQUEST_ID_REUSED"));

  v1::DecodeRequest draft = Step({"a"}, 2, "f");
  draft.set_draft(true);
  ASSERT_REPLY(const auto drafted, caller_.Step(AsStep(draft)));
  ASSERT_REPLY(const auto again, caller_.Decode(draft));
  EXPECT_EQ(again.output().data(), drafted.output().data());
  draft.set_draft(false);
  EXPECT_TRUE(RefusedAs(caller_.Decode(draft), "REQUEST_ID_REUSED"));
  EXPECT_EQ(caller_.TokenCount("a", kLayer), kPrompt + 2);
}

// Its path computes other bits than a decode of the same tokens.
TEST_F(ExactlyOnce, ARowsKindIsPartOfWhatItsIdStandsFor) {
  const StepPart prompt = {.id = "a", .tokens = inputs_.Slice(0, 2), .kind = v1::STEP_KIND_PREFILL};
  ASSERT_TRUE(caller_.Step(WithId(StepOf({prompt}, kLayer), "p")).ok());
  const std::string state = caller_.State("a");
  for (const v1::StepKind kind : {v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT}) {
    StepPart other = prompt;
    other.kind = kind;
    EXPECT_TRUE(RefusedAs(caller_.Step(WithId(StepOf({other}, kLayer), "p")), "REQUEST_ID_REUSED"));
  }
  EXPECT_TRUE(RefusedAs(caller_.Decode(WithId(DecodeOf({"a"}, kLayer, {prompt.tokens}), "p")), "REQUEST_ID_REUSED"));
  StepPart accepts = prompt;
  accepts.accept = 0;
  EXPECT_TRUE(RefusedAs(caller_.Step(WithId(StepOf({accepts}, kLayer), "p")), "REQUEST_ID_REUSED"));
  EXPECT_EQ(caller_.State("a"), state);
}

TEST_F(ExactlyOnce, ARetriedStepOfOtherRowsRunsThoseThatAreNew) {
  for (const char* id : {"b", "c"}) ASSERT_TRUE(caller_.Create(id, "next").ok());
  const StepPart prompt = {.id = "a", .tokens = inputs_.Slice(0, 35), .kind = v1::STEP_KIND_PREFILL};
  const StepPart draft = {.id = "b", .tokens = inputs_.Slice(0, 3), .kind = v1::STEP_KIND_DRAFT};
  const StepPart decode = {.id = "c", .tokens = inputs_.Slice(3, 2)};
  ASSERT_REPLY(const auto first, caller_.Step(WithId(StepOf({prompt, draft}, kLayer), "s")));
  ASSERT_REPLY(const auto second, caller_.Step(WithId(StepOf({decode, draft, prompt}, kLayer), "s")));
  EXPECT_EQ(TokenBytes(second.output(), 2, 3), TokenBytes(first.output(), 35, 3));
  EXPECT_EQ(TokenBytes(second.output(), 5, 35), TokenBytes(first.output(), 0, 35));
  EXPECT_EQ(TokenBytes(second.output(), 0, 2), SendAlone(caller_, "reference", decode, kLayer));
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 35);
  EXPECT_EQ(caller_.TokenCount("b", kLayer), 0);
  EXPECT_EQ(caller_.State("c"), caller_.State("reference"));
}

TEST_F(ExactlyOnce, AStepInFlightIsJoinedRowByRow) {
  ASSERT_TRUE(caller_.Create("b", "next").ok());
  const StepPart decode = {.id = "a", .tokens = inputs_.Token(0)};
  const StepPart prompt = {.id = "b", .tokens = inputs_.Slice(0, 20), .kind = v1::STEP_KIND_PREFILL};
  const StepPart own = {.id = "reference", .tokens = inputs_.Token(0)};
  const auto later = [this](const v1::StepRequest& request) {
    return std::async(std::launch::async, [this, request] { return caller_.Step(request); });
  };
  EngineBlocker blocker(server_.batcher());
  auto both = later(WithId(StepOf({decode, prompt}, kLayer), "s"));
  EXPECT_TRUE(WaitForCalls(server_, "b", kLayer, 1));
  auto joins = later(WithId(StepOf({prompt, own}, kLayer), "s"));
  EXPECT_TRUE(WaitForCalls(server_, "b", kLayer, 2));
  auto by_decode = Later(WithId(DecodeOf({"a"}, kLayer, {decode.tokens}), "s"));
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 2));
  EXPECT_TRUE(RefusedAs(caller_.Step(WithId(StepOf({decode}, kLayer), "t")), "SESSION_BUSY"));
  StepPart accepts = decode;
  accepts.accept = 0;
  EXPECT_TRUE(RefusedAs(caller_.Step(WithId(StepOf({accepts}, kLayer), "s")), "REQUEST_ID_REUSED"));
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({accepts}, kLayer)), "SESSION_BUSY"));
  EXPECT_TRUE(WaitForQueuedSteps(server_, 3));
  blocker.Release();
  ASSERT_REPLY(const auto first, both.get());
  ASSERT_REPLY(const auto joined, joins.get());
  ASSERT_REPLY(const auto decoded, by_decode.get());
  EXPECT_EQ(TokenBytes(joined.output(), 0, 20), TokenBytes(first.output(), 1, 20));
  EXPECT_EQ(TokenBytes(joined.output(), 20, 1), TokenBytes(first.output(), 0, 1)) << "the same step of a new session";
  EXPECT_EQ(decoded.output().data(), TokenBytes(first.output(), 0, 1));
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 1);
  EXPECT_EQ(caller_.TokenCount("b", kLayer), 20);
}

TEST_F(ExactlyOnce, AStepThatIsCancelledOrExpiresWhileItWaitsLeavesEveryRow) {
  for (const char* id : {"b", "c"}) ASSERT_TRUE(caller_.Create(id, "next").ok());
  ASSERT_TRUE(caller_.Prefill(Prompt("a", "")).ok());
  v1::DecodeRequest draft = Step({"a"}, 0, "");
  draft.set_draft(true);
  ASSERT_TRUE(caller_.Decode(draft).ok());
  const std::vector<std::string> ids = {"a", "b", "c"};
  std::string before;
  for (const std::string& id : ids) before += caller_.State(id);
  StepPart accepts = {.id = "a", .tokens = inputs_.Token(kPrompt + 1)};
  accepts.accept = 1;
  const v1::StepRequest request =
      WithId(StepOf({accepts,
                     {.id = "b", .tokens = inputs_.Slice(0, 9), .kind = v1::STEP_KIND_PREFILL},
                     {.id = "c", .tokens = inputs_.Slice(0, 2), .kind = v1::STEP_KIND_DRAFT}},
                    kLayer),
             "s");
  for (const bool expires : {false, true}) {
    SCOPED_TRACE(expires);
    EngineBlocker blocker(server_.batcher());
    const auto context = caller_.NewContext();
    if (expires) context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(300)));
    auto call = std::async(std::launch::async, [&] { return caller_.Step(*context, request); });
    if (!expires) {
      EXPECT_TRUE(WaitForQueuedSteps(server_, 3)) << "a job for each kind";
      CancelAndSettle(caller_, *context);
    }
    EXPECT_EQ(call.get().status.error_code(),
              expires ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED);
    if (expires) absl::SleepFor(absl::Milliseconds(200));  // the server counts from when it heard of the call
    blocker.Release();
    std::string after;
    for (const std::string& id : ids) {
      EXPECT_TRUE(WaitForCalls(server_, id, kLayer, 0));
      after += caller_.State(id);
    }
    EXPECT_EQ(after, before);
  }
  ASSERT_REPLY(const auto stepped, caller_.Step(request));
  EXPECT_EQ(stepped.token_counts(0), kPrompt + 2) << "its id was not used up";
}

// The decodes of a step are applied while its prompt still runs. If the call ends then, a retry runs the prompt alone.
TEST_F(ExactlyOnce, AStepWhosePromptEndsHalfwayKeepsItsOtherRows) {
  if (TestBackendName() == "gpu") GTEST_SKIP() << "a card runs all of the prompt in one launch";
  ASSERT_TRUE(caller_.Create("fresh", "next").ok());
  const StepPart prompt = {.id = "fresh", .tokens = RandomTokens(1500, 3), .kind = v1::STEP_KIND_PREFILL};
  const StepPart decode = {.id = "a", .tokens = inputs_.Token(0)};
  const v1::StepRequest request = WithId(StepOf({prompt, decode}, kLayer), "s");
  const std::string state = caller_.State("fresh");
  EngineBlocker engine(server_.batcher());
  const auto context = caller_.NewContext();
  auto call = std::async(std::launch::async, [&] { return caller_.Step(*context, request); });
  EXPECT_TRUE(WaitForQueuedSteps(server_, 2));
  // Each gate holds the engine after one more launch. At least one follows, so that the prompt has begun as a rule.
  int launches = 0;
  auto at = std::make_unique<EngineGate>();
  at->Post(server_.batcher());
  engine.Release();
  at->reached.wait();
  do {
    auto next = std::make_unique<EngineGate>();
    next->Post(server_.batcher());
    at->open.count_down();
    next->reached.wait();
    at = std::move(next);
    ++launches;
  } while (caller_.TokenCount("a", kLayer) == 0 && launches < 2);
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 1) << "a decode waits for one segment at most";
  CancelAndSettle(caller_, *context);
  EXPECT_EQ(call.get().status.error_code(), grpc::StatusCode::CANCELLED);
  at->open.count_down();
  EXPECT_TRUE(WaitForCalls(server_, "fresh", kLayer, 0));
  EXPECT_EQ(caller_.State("fresh"), state);
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 1);
  ASSERT_REPLY(const auto again, caller_.Step(request));
  EXPECT_EQ(again.token_counts(0), 1500);
  EXPECT_EQ(again.token_counts(1), 1);
  ASSERT_TRUE(caller_.Create("b", "next").ok());
  EXPECT_TRUE(TokenBytes(again.output(), 0, 1500) == SendAlone(caller_, "b", prompt, kLayer));
  EXPECT_TRUE(TokenBytes(again.output(), 1500, 1) == SendAlone(caller_, "reference", decode, kLayer));
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(ExactlyOnce, ABusyRowOfAStepRefusesAllOfItUnlessRowsMayFail) {
  EngineBlocker blocker(server_.batcher());
  auto call = Later(Step({"a"}, 0, "d"));
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 1));
  v1::StepRequest request = AsStep(Step({"reference", "a"}, 0, ""));
  request.mutable_rows(1)->set_kind(v1::STEP_KIND_PREFILL);
  EXPECT_TRUE(RefusedAs(caller_.Step(request), "SESSION_BUSY", {{"session", "sessions/a"}}));
  EXPECT_EQ(server_.batcher().queued_steps(), 1u);
  request.set_partial_ok(true);
  auto rows = std::async(std::launch::async, [&] { return caller_.Step(request); });
  EXPECT_TRUE(WaitForQueuedSteps(server_, 2));
  blocker.Release();
  ASSERT_REPLY(const auto outcome, rows.get());
  EXPECT_EQ(outcome.row_statuses(0).code(), 0);
  EXPECT_EQ(ErrorInfoOf(outcome.row_statuses(1)).reason(), "SESSION_BUSY");
  EXPECT_EQ(TokenBytes(outcome.output(), 1, 1), std::string(TokenBytes(outcome.output(), 1, 1).size(), '\0'));
  EXPECT_TRUE(call.get().ok());
  EXPECT_EQ(caller_.State("reference"), caller_.State("a")) << "the same step, once each";
}

TEST_F(ExactlyOnce, AStepWithARowWhoseReplyIsTooLargeToKeepIsAppliedOnce) {
  TestServer small({.models = {{"next", GoldenPath(kSet)}}, .limits = {.max_stored_reply_bytes = 1000}});
  const Caller caller(small);
  for (const char* id : {"a", "b"}) ASSERT_TRUE(caller.Create(id, "next").ok());
  const StepPart prompt = {.id = "a", .tokens = inputs_.Slice(0, 20), .kind = v1::STEP_KIND_PREFILL};
  const StepPart decode = {.id = "b", .tokens = inputs_.Token(0)};
  v1::StepRequest request = WithId(StepOf({prompt, decode}, kLayer), "s");
  ASSERT_REPLY(const auto first, caller.Step(request));
  const std::string state = caller.State("a") + caller.State("b");
  EXPECT_TRUE(RefusedAs(caller.Step(request), "REPLY_DROPPED", {{"token_count", "20"}, {"session", "sessions/a"}}));
  request.set_partial_ok(true);
  ASSERT_REPLY(const auto partly, caller.Step(request));
  EXPECT_EQ(ErrorInfoOf(partly.row_statuses(0)).reason(), "REPLY_DROPPED");
  EXPECT_EQ(TokenBytes(partly.output(), 20, 1), TokenBytes(first.output(), 20, 1)) << "each row has its own limit";
  EXPECT_EQ(caller.State("a") + caller.State("b"), state);
}

// Nothing is refused for the length of its reply. The step is applied once; a retry learns that it was.
TEST_F(ExactlyOnce, AStepWhoseReplyIsTooLargeToKeepIsAppliedOnce) {
  TestServer small({.models = {{"next", GoldenPath(kSet)}}, .limits = {.max_stored_reply_bytes = 1000}});
  const Caller caller(small);
  ASSERT_TRUE(caller.Create("a", "next").ok());
  ASSERT_TRUE(caller.Create("plain", "next").ok());
  ASSERT_REPLY(const auto first, caller.Prefill(Prompt("a", "p")));
  ASSERT_REPLY(const auto plain, caller.Prefill(Prompt("plain", "")));
  EXPECT_EQ(first.output().data(), plain.output().data());
  const auto again = caller.Prefill(Prompt("a", "p"));
  EXPECT_TRUE(RefusedAs(again, "REPLY_DROPPED", {{"token_count", std::to_string(first.token_count())}}));
  EXPECT_EQ(caller.State("a"), caller.State("plain"));
  auto other = Prompt("a", "p");
  other.set_output_dtype(v1::DTYPE_BF16);
  EXPECT_TRUE(RefusedAs(caller.Prefill(other), "REQUEST_ID_REUSED"));
}

}  // namespace
}  // namespace gdn::exactly_once_test
