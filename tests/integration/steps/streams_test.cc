// StreamPrefill and StreamDecode: order, statuses a message, and how streams end.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/step_parts.h"
#include "tests/support/compare.h"

namespace gdn::streams_test {
namespace {

constexpr char kSet[] = "qwen3_5_5";
constexpr int kLayer = 1;

class Streams : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"a", "reference"}) ASSERT_TRUE(caller_.Create(id, "m").ok());
  }

  using PrefillStream = grpc::ClientReaderWriter<v1::StreamPrefillRequest, v1::StreamPrefillResponse>;

  // Sends all segments before it reads, then reads one reply for each.
  static std::vector<v1::StreamPrefillResponse> Send(PrefillStream& stream,
                                                     const std::vector<v1::PrefillRequest>& segments) {
    for (const v1::PrefillRequest& segment : segments) EXPECT_TRUE(stream.Write(StreamSegment(segment)));
    std::vector<v1::StreamPrefillResponse> replies(segments.size());
    for (auto& reply : replies) EXPECT_TRUE(stream.Read(&reply));
    return replies;
  }

  // The prompt in segments of the given lengths; the outputs end to end.
  std::vector<float> PrefillInSegments(const std::string& id, const Tokens& prompt,
                                       const std::vector<int64_t>& lengths) {
    std::vector<v1::PrefillRequest> segments;
    int64_t first = 0;
    for (const int64_t length : lengths) {
      segments.push_back(PrefillOf(id, kLayer, prompt.Slice(first, length)));
      first += length;
    }
    EXPECT_EQ(first, prompt.count());
    grpc::ClientContext context;
    const auto stream = server_.stub().StreamPrefill(&context);
    std::vector<float> output;
    int64_t tokens = 0;
    const auto replies = Send(*stream, segments);
    for (size_t i = 0; i < replies.size(); ++i) {
      EXPECT_EQ(replies[i].status().code(), 0) << replies[i].status().message();
      tokens += lengths[i];
      EXPECT_EQ(replies[i].result().token_count(), tokens);
      const std::vector<float> part = Floats(replies[i].result().output());
      output.insert(output.end(), part.begin(), part.end());
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
    return output;
  }

  TestServer server_{{.models = {{"m", GoldenPath(kSet)}}}};
  const Caller caller_{server_};
  const Tokens inputs_ = GoldenInputs(kSet, kLayer);
};

TEST_F(Streams, APromptInUnevenSegmentsEqualsOnePrefill) {
  ASSERT_REPLY(const auto whole, caller_.Prefill(PrefillOf("reference", kLayer, inputs_)));
  const std::vector<float> expected = Floats(whole.output());
  const std::vector<std::vector<int64_t>> splits = {
      {1, 157}, {31, 33, 94}, {0, 63, 1, 0, 94}, {64, 64, 30}, {7, 41, 3, 100, 7}};
  for (size_t i = 0; i < splits.size(); ++i) {
    const std::string id = "split" + std::to_string(i);
    ASSERT_TRUE(caller_.Create(id, "m").ok());
    EXPECT_LE(RelativeNormError(PrefillInSegments(id, inputs_, splits[i]), expected), kSplitTolerance) << i;
  }
}

TEST_F(Streams, WholeEngineSegmentsOfTheSamePathGiveTheSameBits) {
  const Tokens prompt = RandomTokens(1300, 5);
  ASSERT_REPLY(const auto whole, caller_.Prefill(PrefillOf("reference", kLayer, prompt)));
  EXPECT_TRUE(BitEqual(PrefillInSegments("a", prompt, {512, 512, 276}), Floats(whole.output())));
  ASSERT_TRUE(caller_.Create("b", "m").ok());
  EXPECT_TRUE(BitEqual(PrefillInSegments("b", prompt, {1024, 276}), Floats(whole.output())));
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
  EXPECT_EQ(caller_.State("b"), caller_.State("reference"));
}

TEST_F(Streams, ABadSegmentDoesNotEndTheStreamAndLeavesNoGap) {
  const auto part = [&](int64_t first, int64_t count) { return PrefillOf("a", kLayer, inputs_.Slice(first, count)); };
  v1::PrefillRequest bad = part(10, 10);
  bad.mutable_hidden_states()->mutable_hidden_states()->set_shape(1, 63);
  v1::PrefillRequest wrong = part(20, 10);
  wrong.set_expected_token_count(20);
  v1::PrefillRequest right = part(10, 10);
  right.set_expected_token_count(10);
  grpc::ClientContext context;
  const auto stream = server_.stub().StreamPrefill(&context);
  const auto replies =
      Send(*stream, {part(0, 10), bad, part(20, 10), wrong, PrefillOf("reference", kLayer, inputs_.Slice(0, 10)),
                     part(20, 10), right, part(20, 10)});
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  const auto reason = [&](size_t i) { return ErrorInfoOf(replies[i].status()).reason(); };
  EXPECT_EQ(replies[0].status().code(), 0);
  EXPECT_EQ(reason(1), "INVALID_TENSOR_SHAPE");
  EXPECT_FALSE(replies[1].has_result());
  EXPECT_EQ(reason(2), "PREVIOUS_SEGMENT_FAILED");
  EXPECT_EQ(replies[2].status().code(), static_cast<int>(grpc::StatusCode::ABORTED));
  EXPECT_EQ(ErrorInfoOf(replies[2].status()).metadata().at("token_count"), "10");
  EXPECT_EQ(reason(3), "TOKEN_COUNT_MISMATCH");
  EXPECT_EQ(replies[4].status().code(), 0) << "another session is none of its business";
  EXPECT_EQ(reason(5), "PREVIOUS_SEGMENT_FAILED");
  EXPECT_EQ(replies[6].status().code(), 0) << replies[6].status().message();
  EXPECT_EQ(replies[7].status().code(), 0) << replies[7].status().message();
  EXPECT_EQ(replies[7].result().token_count(), 30);

  ASSERT_TRUE(caller_.Create("b", "m").ok());
  PrefillInSegments("b", inputs_.Slice(0, 30), {10, 10, 10});
  EXPECT_EQ(caller_.State("a"), caller_.State("b"));
}

TEST_F(Streams, DecodeStepsOfAStreamEqualUnaryOnesToTheBit) {
  for (const char* id : {"a", "reference"}) {
    ASSERT_TRUE(caller_.Prefill(PrefillOf(id, kLayer, inputs_.Slice(0, 20))).ok());
  }
  grpc::ClientContext context;
  const auto stream = server_.stub().StreamDecode(&context);
  constexpr int kSteps = 40;  // folds included
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_TRUE(stream->Write(StreamStep(DecodeOf({"a"}, kLayer, {inputs_.Token(20 + i)}))));
  }
  stream->WritesDone();
  for (int i = 0; i < kSteps; ++i) {
    v1::StreamDecodeResponse reply;
    ASSERT_TRUE(stream->Read(&reply));
    ASSERT_EQ(reply.status().code(), 0) << reply.status().message();
    const auto unary = caller_.Decode(DecodeOf({"reference"}, kLayer, {inputs_.Token(20 + i)}));
    EXPECT_EQ(reply.result().output().data(), unary.reply.output().data()) << "step " << i;
    EXPECT_EQ(reply.result().token_counts(0), 21 + i);
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(Streams, ABadDecodeStepDoesNotEndTheStream) {
  grpc::ClientContext context;
  const auto replies = Converse(*server_.stub().StreamDecode(&context),
                                {StreamStep(DecodeOf({"a"}, kLayer, {inputs_.Token(0)})),
                                 StreamStep(DecodeOf({"nobody"}, kLayer, {inputs_.Token(1)})),
                                 v1::StreamDecodeRequest(), StreamStep(DecodeOf({"a"}, kLayer, {inputs_.Token(1)}))});
  const std::vector<std::string> reasons = {"", "SESSION_NOT_FOUND", "INPUT_MISSING", ""};
  for (size_t i = 0; i < reasons.size(); ++i) {
    EXPECT_EQ(ErrorInfoOf(replies[i].status()).reason(), reasons[i]) << i;
    EXPECT_EQ(replies[i].has_result(), reasons[i].empty()) << i;
  }
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 2);
}

TEST_F(Streams, StepsOfAStreamEqualUnaryOnesToTheBitAndABadOneDoesNotEndIt) {
  const StepPart prompt = {.id = "a", .tokens = inputs_.Slice(0, 20), .kind = v1::STEP_KIND_PREFILL};
  const StepPart draft = {.id = "a", .tokens = inputs_.Slice(20, 4), .kind = v1::STEP_KIND_DRAFT};
  StepPart accepts = {.id = "a", .tokens = inputs_.Slice(30, 1)};
  accepts.accept = 3;
  StepPart too_many = accepts;
  too_many.accept = 5;
  const StepPart nobody = {.id = "nobody", .tokens = inputs_.Token(0)};
  const std::vector<v1::StepRequest> steps = {
      StepOf({prompt}, kLayer), StepOf({draft}, kLayer),    StepOf({nobody}, kLayer), v1::StepRequest(),
      StepOf({draft}, kLayer),  StepOf({too_many}, kLayer), StepOf({accepts}, kLayer)};
  const std::vector<std::string> reasons = {
      "", "", "SESSION_NOT_FOUND", "INPUT_MISSING", "DRAFT_PENDING", "TOO_MANY_TOKENS", ""};
  grpc::ClientContext context;
  const auto stream = server_.stub().StreamStep(&context);
  for (const v1::StepRequest& step : steps) ASSERT_TRUE(stream->Write(StreamStep(step)));
  stream->WritesDone();
  std::string outputs;
  for (size_t i = 0; i < reasons.size(); ++i) {
    v1::StreamStepResponse reply;
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(ErrorInfoOf(reply.status()).reason(), reasons[i]) << i;
    EXPECT_EQ(reply.has_result(), reasons[i].empty()) << i;
    outputs += reply.result().output().data();
  }
  EXPECT_TRUE(stream->Finish().ok());
  std::string expected;
  for (const StepPart& part : {prompt, draft, accepts}) expected += SendAlone(caller_, "reference", part, kLayer);
  EXPECT_EQ(outputs, expected);
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(Streams, AStepStreamCancelledInAStepLeavesEveryRow) {
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", kLayer, inputs_.Slice(0, 20))).ok());
  const std::string state = caller_.State("a") + caller_.State("reference");
  const v1::StreamStepRequest request =
      StreamStep(StepOf({{.id = "a", .tokens = inputs_.Slice(20, 2)},
                         {.id = "reference", .tokens = inputs_.Slice(0, 9), .kind = v1::STEP_KIND_PREFILL}},
                        kLayer));
  EngineBlocker blocker(server_.batcher());
  grpc::ClientContext context;
  const auto stream = server_.stub().StreamStep(&context);
  ASSERT_TRUE(stream->Write(request) && stream->Write(request));  // the second is not read before the first is done
  EXPECT_TRUE(WaitForQueuedSteps(server_, 2));
  CancelAndSettle(caller_, context);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  blocker.Release();
  for (const char* id : {"a", "reference"}) EXPECT_TRUE(WaitForCalls(server_, id, kLayer, 0));
  EXPECT_EQ(caller_.State("a") + caller_.State("reference"), state);
  EXPECT_TRUE(caller_.Step(request.step()).ok());
}

TEST_F(Streams, AClientThatIsDoneGetsAllItsRepliesAndOk) {
  grpc::ClientContext empty;
  const auto nothing = server_.stub().StreamPrefill(&empty);
  nothing->WritesDone();
  v1::StreamPrefillResponse reply;
  EXPECT_FALSE(nothing->Read(&reply));
  EXPECT_TRUE(nothing->Finish().ok());

  EngineBlocker blocker(server_.batcher());
  grpc::ClientContext context;
  const auto stream = server_.stub().StreamPrefill(&context);
  ASSERT_TRUE(stream->Write(StreamSegment(PrefillOf("a", kLayer, inputs_.Slice(0, 5)))));
  stream->WritesDone();  // while the step waits
  EXPECT_TRUE(WaitForQueuedSteps(server_, 1));
  blocker.Release();
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.result().token_count(), 5);
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(Streams, AStreamCancelledInAStepLeavesTheStateAndAHealthyServer) {
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", kLayer, inputs_.Slice(0, 20))).ok());
  const std::string state = caller_.State("a");
  EngineBlocker blocker(server_.batcher());
  grpc::ClientContext context;
  const auto stream = server_.stub().StreamDecode(&context);
  const v1::StreamDecodeRequest request = StreamStep(DecodeOf({"a"}, kLayer, {inputs_.Token(20)}));
  ASSERT_TRUE(stream->Write(request) && stream->Write(request));  // the second is not read before the first is done
  EXPECT_TRUE(WaitForQueuedSteps(server_, 1));
  CancelAndSettle(caller_, context);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  blocker.Release();
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 0));
  EXPECT_EQ(caller_.State("a"), state);
  EXPECT_TRUE(caller_.Decode(request.step()).ok());
}

TEST_F(Streams, AnIdleStreamHoldsNothingOfADeletedSession) {
  grpc::ClientContext context;
  const auto stream = server_.stub().StreamDecode(&context);
  const auto request = StreamStep(DecodeOf({"a", "reference"}, kLayer, {inputs_.Token(0), inputs_.Token(1)}));
  v1::StreamDecodeResponse reply;
  ASSERT_TRUE(stream->Write(request) && stream->Read(&reply));
  ASSERT_EQ(reply.status().code(), 0) << reply.status().message();
  ASSERT_TRUE(caller_.Delete("a").ok() && caller_.Delete("reference").ok());
  EXPECT_EQ(caller_.Info().reply.state_bytes_used(), 0);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace gdn::streams_test
