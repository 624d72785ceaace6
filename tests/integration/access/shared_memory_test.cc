#include "client/cpp/shared_memory.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/integration/support/shared_memory_fixture.h"
#include "tests/integration/support/step_parts.h"
#include "tests/support/random.h"

namespace gdn::shared_memory_test {
namespace {

constexpr int kLayer = 0;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

class SharedMemorySteps : public SharedMemoryFixture {
 protected:
  void SetUp() override {
    for (const char* id : {"a", "reference"}) ASSERT_TRUE(caller_.Create(id, "next").ok());
  }
  v1::DecodeRequest Step(const std::string& id, int token, const std::string& request_id = "") const {
    return WithId(DecodeOf({id}, kLayer, {inputs_.Token(token)}), request_id);
  }
  // Both give the same: the request for "a" in shared memory, that for "reference" in messages.
  void ExpectSame(const v1::PrefillRequest& request) {
    v1::PrefillRequest reference = request;
    reference.set_session("sessions/reference");
    ASSERT_REPLY(const auto expected, caller_.Prefill(reference));
    ASSERT_REPLY(const auto reply, caller_.Prefill(InShared(request)));
    EXPECT_EQ(OutputOf(reply.output()), expected.output().data());
    EXPECT_EQ(reply.token_count(), expected.token_count());
    EXPECT_EQ(reply.output().shape_size(), expected.output().shape_size());
  }
  void ExpectSame(const v1::DecodeRequest& request) {
    v1::DecodeRequest reference = request;
    reference.set_sessions(0, "sessions/reference");
    ASSERT_REPLY(const auto expected, caller_.Decode(reference));
    ASSERT_REPLY(const auto reply, caller_.Decode(InShared(request)));
    EXPECT_EQ(OutputOf(reply.output()), expected.output().data());
    EXPECT_EQ(reply.token_counts(0), expected.token_counts(0));
  }
};

TEST_F(SharedMemorySteps, GiveTheBitsOfMessagesForEveryKindOfInput) {
  for (const v1::DType dtype : {v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}) {
    ExpectSame(PrefillOf("a", 0, inputs_.Slice(0, 37), dtype));
    ExpectSame(DecodeOf({"a"}, 0, {inputs_.Slice(37, 3)}, dtype));
  }
  v1::PrefillRequest projected;
  projected.set_session("sessions/a");
  projected.set_layer(1);
  *projected.mutable_projected() = RandomProjected({20}, 5);
  ExpectSame(projected);
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));

  for (const char* id : {"a", "reference"}) {
    ASSERT_TRUE(caller_.Delete(id).ok());
    ASSERT_TRUE(caller_.CreateOperator(id, SmallOperator()).ok());
  }
  Random random(3);
  v1::PrefillRequest delta;
  delta.set_session("sessions/a");
  *delta.mutable_delta_rule() = DeltaRuleOf(RandomDeltaRuleInputs(SmallOperatorDims(), 40, random), {40});
  ExpectSame(delta);
  v1::DecodeRequest step;
  step.add_sessions("sessions/a");
  *step.mutable_delta_rule() = DeltaRuleOf(RandomDeltaRuleInputs(SmallOperatorDims(), 2, random), {1, 2});
  ExpectSame(step);
}

TEST_F(SharedMemorySteps, GiveTheBitsOfMessagesForRowsOfEveryKind) {
  for (const char* id : {"b", "c", "reference-b", "reference-c"}) ASSERT_TRUE(caller_.Create(id, "next").ok());
  const auto parts = [&](const std::string& a, const std::string& b, const std::string& c, int round) {
    StepPart draft = {.id = a, .tokens = inputs_.Slice(4 * round, 4), .kind = v1::STEP_KIND_DRAFT};
    if (round > 0) draft.accept = 3;
    return std::vector<StepPart>{draft,
                                 {.id = b, .tokens = inputs_.Slice(5 * round, 5), .kind = v1::STEP_KIND_PREFILL},
                                 {.id = c, .tokens = inputs_.Slice(2 * round, round % 3)}};
  };
  const std::vector<std::string> ids = {"a", "b", "c"};
  grpc::ClientContext context;
  const auto stream = server_.stub().StreamStep(&context);
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    ASSERT_REPLY(const auto expected, caller_.Step(StepOf(parts("reference", "reference-b", "reference-c", round))));
    const v1::StepRequest request = InShared(StepOf(parts("a", "b", "c", round)));
    v1::StreamStepResponse reply;
    if (round % 2 == 0) {
      ASSERT_REPLY(*reply.mutable_result(), caller_.Step(request));
    } else {
      ASSERT_TRUE(stream->Write(StreamStep(request)) && stream->Read(&reply));
      ASSERT_EQ(reply.status().code(), 0) << reply.status().message();
    }
    EXPECT_EQ(OutputOf(reply.result().output()), expected.output().data());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(reply.result().token_counts(i), expected.token_counts(i));
  }
  for (const std::string& id : ids) {
    EXPECT_EQ(caller_.State(id), caller_.State(id == "a" ? "reference" : "reference-" + id)) << id;
  }
  StepPart bad = {.id = "c", .tokens = inputs_.Slice(0, 2)};
  bad.expected = 99;
  v1::StepRequest partial = StepOf({bad, {.id = "b", .tokens = inputs_.Token(1)}});
  partial.set_partial_ok(true);
  ASSERT_REPLY(const auto rows, caller_.Step(InShared(partial)));
  ASSERT_REPLY(const auto other, caller_.Step(StepOf({{.id = "reference-b", .tokens = inputs_.Token(1)}})));
  EXPECT_EQ(OutputOf(rows.output()), std::string(2 * other.output().data().size(), '\0') + other.output().data());
}

TEST_F(SharedMemorySteps, GiveTheBitsOfMessagesInStreams) {
  grpc::ClientContext decode_context, prefill_context;
  const auto prefills = server_.stub().StreamPrefill(&prefill_context);
  for (int i = 0; i < 3; ++i) {
    v1::StreamPrefillResponse reply;
    ASSERT_TRUE(prefills->Write(StreamSegment(InShared(PrefillOf("a", kLayer, inputs_.Slice(7 * i, 7))))));
    ASSERT_TRUE(prefills->Read(&reply));
    ASSERT_REPLY(const auto expected, caller_.Prefill(PrefillOf("reference", kLayer, inputs_.Slice(7 * i, 7))));
    EXPECT_EQ(OutputOf(reply.result().output()), expected.output().data()) << i;
  }
  const auto decodes = server_.stub().StreamDecode(&decode_context);
  for (int i = 0; i < 20; ++i) {
    v1::StreamDecodeResponse reply;
    ASSERT_TRUE(decodes->Write(StreamStep(i % 3 == 2 ? Step("a", i) : InShared(Step("a", i)))));
    ASSERT_TRUE(decodes->Read(&reply));
    ASSERT_REPLY(const auto expected, caller_.Decode(Step("reference", i)));
    const v1::Tensor& output = reply.result().output();
    EXPECT_EQ(i % 3 == 2 ? output.data() : OutputOf(output), expected.output().data()) << i;
  }
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(SharedMemorySteps, MayPutTheOutputWhereTheInputWas) {
  v1::DecodeRequest step = InShared(Step("a", 0));
  *step.mutable_output_shared() = step.hidden_states().hidden_states().shared();
  ASSERT_REPLY(const auto reply, caller_.Decode(step));
  ASSERT_REPLY(const auto expected, caller_.Decode(Step("reference", 0)));
  EXPECT_EQ(OutputOf(reply.output()), expected.output().data());
}

TEST_F(SharedMemorySteps, RetriesCrossBetweenMessagesAndSharedMemory) {
  ASSERT_REPLY(const auto by_message, caller_.Decode(Step("a", 0, "one")));
  ASSERT_REPLY(const auto again, caller_.Decode(InShared(Step("a", 0, "one"))));
  EXPECT_EQ(OutputOf(again.output()), by_message.output().data());

  ASSERT_REPLY(const auto by_memory, caller_.Decode(InShared(Step("a", 1, "two"))));
  const std::string output = OutputOf(by_memory.output());
  v1::DecodeRequest input_only = InShared(Step("a", 1, "two"));
  input_only.clear_output_shared();
  for (const v1::DecodeRequest& retry : {Step("a", 1, "two"), input_only}) {
    ASSERT_REPLY(const auto replayed, caller_.Decode(retry));
    EXPECT_EQ(replayed.output().data(), output);
    EXPECT_EQ(replayed.token_counts(0), 2);
  }
  EXPECT_TRUE(RefusedAs(caller_.Decode(InShared(Step("a", 2, "two"))), "REQUEST_ID_REUSED"));
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 2);
}

TEST_F(SharedMemorySteps, RefuseBadRangesAndMoveNothing) {
  ASSERT_TRUE(caller_.Decode(Step("a", 0)).ok());
  const v1::DecodeRequest good = InShared(Step("a", 1));
  const int64_t bytes = good.output_shared().bytes();
  Client foreign(server_.channel(), {.token = "somebody else"});
  const auto others = foreign.ShareMemory(kRegionBytes).value();
  auto ended = client_.ShareMemory(kRegionBytes).value();
  const std::string ended_name = ended->region();
  ended = nullptr;
  ASSERT_TRUE(WaitUntil([&] { return FilesThere() == 2; }, "the region to end"));

  std::vector<BadCall> calls;
  const auto add = [&](const char* name, const char* reason, const auto& change) {
    for (const bool output : {false, true}) {
      v1::DecodeRequest request = good;
      change(output ? *request.mutable_output_shared() : *TensorsOf(request)[0]->mutable_shared());
      calls.push_back({std::string(name) + (output ? " (output)" : ""), reason,
                       output ? "output_shared" : "hidden_states",
                       [this, request] { return caller_.Decode(request).status; }});
    }
  };
  add("no region", "SHARED_REGION_NOT_FOUND", [](v1::SharedRange& r) { r.clear_region(); });
  add("unknown", "SHARED_REGION_NOT_FOUND", [](v1::SharedRange& r) { r.set_region("gdn-shm-0"); });
  add("another's", "SHARED_REGION_NOT_FOUND", [&](v1::SharedRange& r) { r.set_region(others->region()); });
  add("ended", "SHARED_REGION_NOT_FOUND", [&](v1::SharedRange& r) { r.set_region(ended_name); });
  add("a path", "SHARED_REGION_NOT_FOUND", [&](v1::SharedRange& r) { r.set_region("../" + r.region()); });
  for (const int64_t offset : {int64_t{-1}, kRegionBytes - bytes + 1, kRegionBytes, kMost, kMost - bytes, -kMost - 1}) {
    add("offset", "INVALID_SHARED_RANGE", [offset](v1::SharedRange& r) { r.set_offset(offset); });
  }
  for (const int64_t size : {int64_t{0}, int64_t{-1}, bytes - 1, bytes + 1, kMost, -kMost - 1}) {
    add("length", "INVALID_TENSOR_DATA", [size](v1::SharedRange& r) { r.set_bytes(size); });
  }
  const v1::StepRequest step =
      InShared(StepOf({{.id = "a", .tokens = inputs_.Slice(1, 2)}, {.id = "reference", .tokens = inputs_.Token(0)}}));
  const auto add_step = [&](const char* reason, bool output, const auto& change) {
    v1::StepRequest request = step;
    change(output ? *request.mutable_output_shared() : *TensorsOf(request)[0]->mutable_shared());
    calls.push_back({std::string("Step, ") + reason, reason, output ? "output_shared" : "hidden_states",
                     [this, request] { return caller_.Step(request).status; }});
  };
  for (const bool output : {false, true}) {
    add_step("SHARED_REGION_NOT_FOUND", output, [&](v1::SharedRange& r) { r.set_region(others->region()); });
    add_step("INVALID_SHARED_RANGE", output, [](v1::SharedRange& r) { r.set_offset(kRegionBytes); });
    for (const int64_t more : {int64_t{-1}, int64_t{1}}) {
      add_step("INVALID_TENSOR_DATA", output, [more](v1::SharedRange& r) { r.set_bytes(r.bytes() + more); });
    }
  }
  v1::DecodeRequest both = good;
  TensorsOf(both)[0]->set_data(std::string(static_cast<size_t>(bytes), '\0'));
  calls.push_back({"both", "INVALID_SHARED_RANGE", "hidden_states", [&] { return caller_.Decode(both).status; }});
  v1::CreateSessionRequest create;
  create.set_model("models/next");
  v1::Tensor& state = *create.add_initial_states()->mutable_recurrent_state();
  state = AsTensor({4, 32, 32}, {});
  *state.mutable_shared() = memory_->RangeAt(0, 4 * 32 * 32 * 4).value();
  calls.push_back({"initial state", "INVALID_SHARED_RANGE", "", [&] { return caller_.Create(create).status; }});
  ExpectRefused(calls, [&] { return caller_.State("a") + caller_.State("reference"); });
  EXPECT_TRUE(caller_.Decode(good).ok());
}

TEST_F(SharedMemorySteps, CheckTheValuesThatTheyCompute) {
  v1::DecodeRequest step = InShared(Step("a", 0));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(BytesOf(TensorsOf(step)[0]->shared()).data() + 12, &nan, sizeof(nan));
  EXPECT_TRUE(RefusedAs(caller_.Decode(step), "NON_FINITE_INPUT", {{"index", "[0, 0, 3]"}}));
  EXPECT_EQ(caller_.TokenCount("a", kLayer), 0);
}

TEST_F(SharedMemorySteps, CountAsIfTheyWereInTheMessage) {
  TestServer small(
      {.models = {{"next", GoldenPath(kSet)}}, .limits = {.max_message_bytes = 4096}, .shared_memory = Options()});
  const Caller caller(small);
  ASSERT_TRUE(caller.Create("a", "next").ok());
  Client client(small.channel());
  memory_ = client.ShareMemory(kRegionBytes).value();
  EXPECT_TRUE(caller.Prefill(InShared(PrefillOf("a", kLayer, inputs_.Slice(0, 15)))).ok());
  EXPECT_TRUE(RefusedAs(caller.Prefill(InShared(PrefillOf("a", kLayer, inputs_.Slice(0, 17)))), "MESSAGE_TOO_LARGE"));
  memory_ = nullptr;  // before its client
}

TEST_F(SharedMemorySteps, PartialBatchesHaveZerosForFailedRows) {
  v1::DecodeRequest step = DecodeOf({"a", "nobody"}, kLayer, {inputs_.Token(0), inputs_.Token(0)});
  step.set_partial_ok(true);
  ASSERT_REPLY(const auto reply, caller_.Decode(InShared(step)));
  ASSERT_REPLY(const auto expected, caller_.Decode(Step("reference", 0)));
  EXPECT_EQ(OutputOf(reply.output()), expected.output().data() + std::string(expected.output().data().size(), '\0'));
  v1::DecodeRequest nobody = DecodeOf({"nobody"}, kLayer, {inputs_.Token(0)});
  nobody.set_partial_ok(true);
  EXPECT_TRUE(caller_.Decode(InShared(nobody)).ok());
}

class SharedMemoryRegions : public SharedMemoryFixture {};

TEST_F(SharedMemoryRegions, AreToldOfAndCounted) {
  ASSERT_REPLY(const auto info, caller_.Info());
  EXPECT_EQ(info.limits().shared_memory_bytes(), Options().bytes_per_principal);
  EXPECT_EQ(info.limits().shared_memory_regions(), Options().regions_per_principal);
  EXPECT_EQ(info.shared_memory_bytes(), kRegionBytes);

  const absl::Status over = client_.ShareMemory(Options().bytes_per_principal).status();
  EXPECT_EQ(over.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(over), "SHARED_MEMORY_EXHAUSTED");
  Client other(server_.channel(), {.token = "somebody else"});
  const absl::Status invented = other.ShareMemory(Options().bytes_per_principal).status();
  EXPECT_EQ(ErrorReason(invented), "SHARED_MEMORY_EXHAUSTED") << "a token that nobody lists is of the same account";
  for (const int64_t bytes : {int64_t{0}, int64_t{-5}}) {
    EXPECT_EQ(ErrorReason(client_.ShareMemory(bytes).status()), "INVALID_SPEC");
  }
  memory_ = nullptr;
  ASSERT_TRUE(WaitUntil([&] { return caller_.Info().reply.shared_memory_bytes() == 0; }, "the count to go back"));
  EXPECT_EQ(FilesThere(), 0);
  EXPECT_TRUE(client_.ShareMemory(Options().bytes_per_principal).ok());
}

TEST_F(SharedMemoryRegions, EndWhenTheServerDrains) {
  BytesOf(memory_->RangeAt(0, 1).value())[0] = 'x';
  EXPECT_TRUE(memory_->status().ok());
  EXPECT_TRUE(server_.Drain());
  ASSERT_TRUE(WaitUntil([&] { return !memory_->status().ok(); }, "the client to hear of the end"));
  EXPECT_EQ(ErrorReason(memory_->status()), "SERVER_DRAINING");
  EXPECT_EQ(FilesThere(), 0);
  EXPECT_EQ(BytesOf(memory_->RangeAt(0, 1).value())[0], 'x') << "the mapping stays good";
}

TEST_F(SharedMemoryRegions, EndWhenTheCallIsCancelledAtAnyTime) {
  for (int i = 0; i < 20; ++i) {
    v1::ShareMemoryRequest request;
    request.set_bytes(4096);
    grpc::ClientContext context;
    const auto reader = server_.stub().ShareMemory(&context, request);
    if (i % 2 == 0) context.TryCancel();
    v1::ShareMemoryResponse response;
    if (reader->Read(&response)) context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(WaitUntil([&] { return FilesThere() == 1; }, "the regions to end"));
}

TEST(SharedMemoryOff, IsRefusedSoThatClientsSendMessages) {
  TestServer server({.shared_memory = {.directory = ""}});
  Client client(server.channel());
  EXPECT_EQ(client.GetServerInfo().value().limits().shared_memory_bytes(), 0);
  const absl::Status status = client.ShareMemory(4096).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ErrorReason(status), "SHARED_MEMORY_NOT_OFFERED");
}

}  // namespace
}  // namespace gdn::shared_memory_test
