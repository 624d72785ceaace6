// TraceCalls: every step tells where its time went, and only to its own principal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/step_parts.h"
#include "tests/server/batcher/engine_gate.h"

namespace gdn::trace_calls_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr char kSet[] = "qwen3_next_1";
constexpr int kLayer = 0;

class TraceCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"a", "b"}) ASSERT_TRUE(caller_.Create(id, "m").ok());
  }

  static Outcome<v1::TraceCallsResponse> Ask(const Caller& caller, const v1::TraceCallsRequest& request = {}) {
    Outcome<v1::TraceCallsResponse> outcome;
    outcome.status = caller.server().stub().TraceCalls(caller.NewContext().get(), request, &outcome.reply);
    return outcome;
  }
  static Outcome<v1::TraceCallsResponse> Keep(const Caller& caller, int32_t keep) {
    v1::TraceCallsRequest request;
    request.set_keep(keep);
    return Ask(caller, request);
  }
  // The caller's traces, once there are so many: a client may have its reply before the server has noted its end.
  static std::vector<v1::CallTrace> Traces(const Caller& caller, int calls) {
    v1::TraceCallsResponse traced;
    EXPECT_TRUE(WaitUntil(
        [&] {
          traced = Ask(caller).reply;
          return traced.calls_size() >= calls;
        },
        "the traces"));
    EXPECT_EQ(traced.calls_size(), calls);
    return {traced.calls().begin(), traced.calls().end()};
  }

  static std::vector<v1::TraceStage> Stages(const v1::CallTrace& call) {
    std::vector<v1::TraceStage> stages;
    for (const v1::CallStage& stage : call.stages()) stages.push_back(stage.stage());
    return stages;
  }
  // Expects that the stages of a trace begin in order and lie within the call, and that the reply is the last.
  static void ExpectInOrder(const v1::CallTrace& call) {
    SCOPED_TRACE(call.ShortDebugString());
    ASSERT_GT(call.stages_size(), 0);
    EXPECT_GT(call.begin_ns(), 0);
    EXPECT_GT(call.begin_time().seconds(), 0);
    EXPECT_EQ(call.stages(0).begin_ns(), 0);
    int64_t begin = 0;
    for (const v1::CallStage& stage : call.stages()) {
      EXPECT_GE(stage.begin_ns(), begin);
      EXPECT_GE(stage.duration_ns(), 0);
      EXPECT_LE(stage.begin_ns() + stage.duration_ns(), call.duration_ns());
      EXPECT_NE(stage.stage(), v1::TRACE_STAGE_UNSPECIFIED);
      const bool of_no_thread = stage.stage() == v1::TRACE_STAGE_QUEUE || stage.stage() == v1::TRACE_STAGE_COMPUTE;
      EXPECT_EQ(stage.thread().empty(), of_no_thread);
      begin = stage.begin_ns();
    }
    const v1::CallStage& last = call.stages(call.stages_size() - 1);
    EXPECT_EQ(last.stage(), v1::TRACE_STAGE_REPLY);
    EXPECT_EQ(last.begin_ns() + last.duration_ns(), call.duration_ns());
  }
  // A step that was computed.
  static void ExpectComputed(const v1::CallTrace& call) {
    ExpectInOrder(call);
    EXPECT_THAT(Stages(call), IsSupersetOf({v1::TRACE_STAGE_ADMIT, v1::TRACE_STAGE_COPY_IN, v1::TRACE_STAGE_COMPUTE,
                                            v1::TRACE_STAGE_COPY_OUT, v1::TRACE_STAGE_COMMIT, v1::TRACE_STAGE_REPLY}));
    EXPECT_EQ(call.layer(), kLayer);
    EXPECT_EQ(call.status().code(), 0);
    EXPECT_GT(call.request_bytes(), 0);
    EXPECT_GT(call.response_bytes(), 0);
    EXPECT_GE(call.launches(), 1);
  }
  // A call that no launch has seen.
  static void ExpectNotComputed(const v1::CallTrace& call) {
    ExpectInOrder(call);
    EXPECT_EQ(call.launches(), 0);
    for (const auto stage : {v1::TRACE_STAGE_COPY_IN, v1::TRACE_STAGE_LAUNCH, v1::TRACE_STAGE_COMPUTE,
                             v1::TRACE_STAGE_COPY_OUT, v1::TRACE_STAGE_COMMIT}) {
      EXPECT_THAT(Stages(call), Not(Contains(stage)));
    }
  }

  v1::PrefillRequest Prompt(int64_t tokens = 37) const { return PrefillOf("a", kLayer, inputs_.Slice(0, tokens)); }
  v1::DecodeRequest Step(const std::vector<std::string>& ids) const {
    return DecodeOf(ids, kLayer, std::vector<Tokens>(ids.size(), inputs_.Token(40)));
  }

  TestServer server_{{.models = {{"m", GoldenPath(kSet)}}, .trace_calls = 8}};
  const Caller caller_{server_};
  const Tokens inputs_ = GoldenInputs(kSet, kLayer);
};

TEST_F(TraceCallsTest, TellsEveryStageOfAUnaryCall) {
  ASSERT_TRUE(caller_.Prefill(Prompt()).ok());
  ASSERT_EQ(Traces(caller_, 1).size(), 1u);
  ASSERT_TRUE(caller_.Decode(Step({"a", "b"})).ok());
  const auto calls = Traces(caller_, 2);
  ASSERT_EQ(calls.size(), 2u);
  for (const v1::CallTrace& call : calls) {
    ExpectComputed(call);
    EXPECT_EQ(call.stages(0).stage(), v1::TRACE_STAGE_PARSE);
    EXPECT_EQ(call.session(), "sessions/a");
    const std::vector<v1::TraceStage> stages = Stages(call);
    EXPECT_EQ(std::ranges::count(stages, v1::TRACE_STAGE_LAUNCH),
              server_.server().backend().info().unified_memory ? 0 : call.launches());
  }
  EXPECT_EQ(calls[0].method(), "Prefill");
  EXPECT_EQ(calls[0].rows(), 1);
  EXPECT_EQ(calls[0].tokens(), 37);
  EXPECT_EQ(calls[1].method(), "Decode");
  EXPECT_EQ(calls[1].rows(), 2);
  EXPECT_EQ(calls[1].tokens(), 2);
  EXPECT_GE(calls[1].begin_ns(), calls[0].begin_ns());
}

TEST_F(TraceCallsTest, TellsAStepWithAllItsRows) {
  const StepPart decode = {.id = "a", .tokens = inputs_.Slice(40, 2)};
  const StepPart prompt = {.id = "b", .tokens = inputs_.Slice(0, 37), .kind = v1::STEP_KIND_PREFILL};
  ASSERT_TRUE(caller_.Step(WithId(StepOf({decode, prompt}, kLayer), "once")).ok());
  ASSERT_EQ(Traces(caller_, 1).size(), 1u);
  ASSERT_TRUE(caller_.Step(WithId(StepOf({decode, prompt}, kLayer), "once")).ok());
  ASSERT_EQ(Traces(caller_, 2).size(), 2u);
  grpc::ClientContext context;
  Converse(*server_.stub().StreamStep(&context), {StreamStep(StepOf({decode}, kLayer))});
  ASSERT_EQ(Traces(caller_, 3).size(), 3u);
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({decode, {.id = "unknown", .tokens = inputs_.Token(0)}}, kLayer)),
                        "SESSION_NOT_FOUND"));
  const auto calls = Traces(caller_, 4);
  ASSERT_EQ(calls.size(), 4u);
  ExpectComputed(calls[0]);
  ExpectNotComputed(calls[1]);
  ExpectComputed(calls[2]);
  ExpectNotComputed(calls[3]);
  for (const int i : {0, 1, 3}) {
    EXPECT_EQ(calls[static_cast<size_t>(i)].method(), "Step");
    EXPECT_EQ(calls[static_cast<size_t>(i)].rows(), 2);
    EXPECT_EQ(calls[static_cast<size_t>(i)].session(), "sessions/a");
  }
  EXPECT_EQ(calls[0].tokens(), 39);
  EXPECT_EQ(calls[2].method(), "StreamStep");
  EXPECT_EQ(calls[2].tokens(), 2);
  EXPECT_EQ(ErrorInfoOf(calls[3].status()).reason(), "SESSION_NOT_FOUND");
}

TEST_F(TraceCallsTest, TellsTheMessagesOfStreams) {
  grpc::ClientContext prefills, decodes;
  Converse(*server_.stub().StreamPrefill(&prefills), {StreamSegment(Prompt(5)), StreamSegment(Prompt(6))});
  const auto segments = Traces(caller_, 2);
  Converse(*server_.stub().StreamDecode(&decodes), {StreamStep(Step({"a"}))});
  const auto calls = Traces(caller_, 3);
  ASSERT_EQ(calls.size(), 3u);
  for (const v1::CallTrace& call : calls) {
    ExpectComputed(call);
    EXPECT_EQ(call.stages(0).stage(), v1::TRACE_STAGE_PARSE);
  }
  EXPECT_EQ(calls[0].method(), "StreamPrefill");
  EXPECT_EQ(calls[0].tokens(), 5);
  EXPECT_EQ(calls[1].tokens(), 6);
  EXPECT_EQ(calls[2].method(), "StreamDecode");
}

TEST_F(TraceCallsTest, TellsEachLaunchOfALongPrefill) {
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", kLayer, RandomTokens(600, /*seed=*/1))).ok());
  const auto calls = Traces(caller_, 1);
  ASSERT_EQ(calls.size(), 1u);
  ExpectComputed(calls[0]);
  if (server_.server().backend().info().unified_memory) {
    EXPECT_EQ(calls[0].launches(), 2);
  }
  std::map<v1::TraceStage, int> count;
  for (const v1::TraceStage stage : Stages(calls[0])) ++count[stage];
  for (const auto stage : {v1::TRACE_STAGE_COPY_IN, v1::TRACE_STAGE_COMPUTE, v1::TRACE_STAGE_COPY_OUT}) {
    EXPECT_EQ(count[stage], calls[0].launches()) << stage;
  }
  EXPECT_EQ(count[v1::TRACE_STAGE_COMMIT], 1);
}

TEST_F(TraceCallsTest, AStoredReplyAndARefusalGoNoFurtherThanAdmission) {
  ASSERT_TRUE(caller_.Decode(WithId(Step({"a"}), "once")).ok());
  ASSERT_EQ(Traces(caller_, 1).size(), 1u);
  ASSERT_TRUE(caller_.Decode(WithId(Step({"a"}), "once")).ok());
  ASSERT_EQ(Traces(caller_, 2).size(), 2u);
  EXPECT_TRUE(RefusedAs(caller_.Decode(Step({"unknown"})), "SESSION_NOT_FOUND"));
  const auto calls = Traces(caller_, 3);
  ASSERT_EQ(calls.size(), 3u);
  for (size_t i = 1; i < 3; ++i) {
    ExpectNotComputed(calls[i]);
    EXPECT_THAT(Stages(calls[i]), ElementsAre(v1::TRACE_STAGE_PARSE, v1::TRACE_STAGE_ADMIT, v1::TRACE_STAGE_REPLY));
  }
  EXPECT_EQ(calls[1].status().code(), 0);
  EXPECT_GT(calls[1].response_bytes(), 0);
  EXPECT_EQ(calls[2].status().code(), static_cast<int>(grpc::StatusCode::NOT_FOUND));
  EXPECT_EQ(ErrorInfoOf(calls[2].status()).reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(calls[2].response_bytes(), 0);
  EXPECT_EQ(calls[2].session(), "sessions/unknown");
}

TEST_F(TraceCallsTest, ACallThatJoinsAnotherWaits) {
  EngineBlocker engine(server_.batcher());
  const auto later = [&] {
    return std::async(std::launch::async, [&] { return caller_.Decode(WithId(Step({"a"}), "same")).ok(); });
  };
  auto first = later();
  auto second = later();
  ASSERT_TRUE(WaitForCalls(server_, "a", kLayer, 2));
  engine.Release();
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  auto calls = Traces(caller_, 2);
  ASSERT_EQ(calls.size(), 2u);
  if (calls[0].launches() == 0) std::swap(calls[0], calls[1]);
  ExpectComputed(calls[0]);
  ExpectNotComputed(calls[1]);
  EXPECT_THAT(Stages(calls[1]),
              ElementsAre(v1::TRACE_STAGE_PARSE, v1::TRACE_STAGE_ADMIT, v1::TRACE_STAGE_QUEUE, v1::TRACE_STAGE_REPLY));
}

TEST_F(TraceCallsTest, ACallThatWasCancelledBeforeItsStepIsNotComputed) {
  EngineBlocker engine(server_.batcher());
  const auto context = caller_.NewContext();
  auto call = std::async(std::launch::async, [&] { return caller_.Decode(*context, Step({"a"})).ok(); });
  ASSERT_TRUE(WaitForQueuedSteps(server_, 1));
  CancelAndSettle(caller_, *context);
  engine.Release();
  EXPECT_FALSE(call.get());
  const auto calls = Traces(caller_, 1);
  ASSERT_EQ(calls.size(), 1u);
  ExpectNotComputed(calls[0]);
  EXPECT_EQ(calls[0].status().code(), static_cast<int>(grpc::StatusCode::CANCELLED));
}

TEST_F(TraceCallsTest, ShowsNobodyTheCallsOfOthers) {
  const Caller other(server_, "Bearer other");
  ASSERT_TRUE(caller_.Decode(Step({"a"})).ok());
  ASSERT_EQ(Traces(caller_, 1).size(), 1u);
  EXPECT_EQ(Ask(other).reply.calls_size(), 0);
  EXPECT_FALSE(other.Decode(Step({"a"})).ok());  // not its session; the call is its own
  const auto calls = Traces(other, 1);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_NE(calls[0].status().code(), 0);
  EXPECT_EQ(Traces(caller_, 1)[0].status().code(), 0);
}

TEST_F(TraceCallsTest, KeepsAsManyAsItIsTold) {
  for (int i = 1; i <= 10; ++i) {
    ASSERT_TRUE(caller_.Decode(Step({"a"})).ok());
    ASSERT_EQ(Traces(caller_, std::min(i, 8)).size(), static_cast<size_t>(std::min(i, 8)));
  }
  v1::TraceCallsRequest newest;
  newest.set_max_calls(3);
  EXPECT_EQ(Ask(caller_, newest).reply.calls_size(), 3);
  EXPECT_EQ(Ask(caller_).reply.kept(), 8);
  EXPECT_EQ(Keep(caller_, 0).reply.calls_size(), 8);  // what was there is told once more
  ASSERT_TRUE(caller_.Decode(Step({"a"})).ok());
  const auto off = Keep(caller_, 2);
  EXPECT_EQ(off.reply.calls_size(), 0);
  EXPECT_EQ(off.reply.kept(), 2);
  EXPECT_TRUE(RefusedAs(Keep(caller_, 10'001), "INVALID_SPEC", {{"field", "keep"}}));
  EXPECT_TRUE(RefusedAs(Keep(caller_, -1), "INVALID_SPEC", {{"field", "keep"}}));
  newest.set_max_calls(-1);
  EXPECT_TRUE(RefusedAs(Ask(caller_, newest), "INVALID_SPEC", {{"field", "max_calls"}}));
  EXPECT_EQ(Ask(caller_).reply.kept(), 2);
}

// The trailing metadata's "traceparent"; "" without one.
std::string TraceparentOf(const grpc::ClientContext& context) {
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto it = trailing.find("traceparent");
  return it == trailing.end() ? "" : std::string(it->second.data(), it->second.size());
}

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParentId[] = "b7ad6b7169203331";

TEST_F(TraceCallsTest, ACallBelongsToItsClientsTrace) {
  const std::string traceparent = std::string("00-") + kTraceId + "-" + kParentId + "-01";
  const auto decode = caller_.NewContext();
  decode->AddMetadata("traceparent", traceparent);
  ASSERT_TRUE(caller_.Decode(*decode, Step({"a"})).ok());
  const auto calls = Traces(caller_, 1);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].trace_id(), kTraceId);
  EXPECT_EQ(calls[0].parent_span_id(), kParentId);
  EXPECT_EQ(TraceparentOf(*decode), std::string("00-") + kTraceId + "-" + calls[0].span_id() + "-01");
  EXPECT_NE(calls[0].span_id(), kParentId);

  // So do those that are refused, and those that are no steps.
  const auto refused = caller_.NewContext(), get = caller_.NewContext();
  for (grpc::ClientContext* const context : {refused.get(), get.get()})
    context->AddMetadata("traceparent", traceparent);
  EXPECT_FALSE(caller_.Decode(*refused, Step({"unknown"})).ok());
  v1::GetSessionRequest request;
  request.set_name("sessions/a");
  v1::GetSessionResponse response;
  EXPECT_TRUE(server_.stub().GetSession(get.get(), request, &response).ok());
  for (const grpc::ClientContext* const context : {refused.get(), get.get()}) {
    EXPECT_EQ(TraceparentOf(*context).substr(0, 36), std::string("00-") + kTraceId + "-");
  }
}

TEST_F(TraceCallsTest, AMalformedTraceparentIsIgnored) {
  const std::string good = std::string("00-") + kTraceId + "-" + kParentId + "-01";
  int calls = 0;
  for (const std::vector<std::string>& headers :
       {std::vector<std::string>{"nonsense"}, {good + "x"}, {std::string("ff") + good.substr(2)}, {good, good}, {}}) {
    const auto context = caller_.NewContext();
    for (const std::string& header : headers) context->AddMetadata("traceparent", header);
    ASSERT_TRUE(caller_.Decode(*context, Step({"a"})).ok());
    EXPECT_EQ(TraceparentOf(*context), "");
    const auto traces = Traces(caller_, ++calls);
    EXPECT_EQ(traces.back().trace_id() + traces.back().span_id() + traces.back().parent_span_id(), "");
  }
}

TEST(TraceCallsByDefault, NothingIsKept) {
  TestServer server({.models = {{"m", GoldenPath(kSet)}}});
  const Caller caller(server);
  ASSERT_TRUE(caller.Create("a", "m").ok());
  ASSERT_TRUE(caller.Decode(DecodeOf({"a"}, kLayer, {RandomTokens(1, /*seed=*/2)})).ok());
  v1::TraceCallsResponse traced;
  ASSERT_TRUE(server.stub().TraceCalls(caller.NewContext().get(), {}, &traced).ok());
  EXPECT_EQ(traced.calls_size(), 0);
  EXPECT_EQ(traced.kept(), 0);
}

}  // namespace
}  // namespace gdn::trace_calls_test
