// Limits of the memory that callers may hold on the server: for calls that wait, for files on their way in and out.
#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>
#include <future>
#include <vector>

#include "base/threads/steady_clock.h"
#include "client/cpp/client.h"
#include "server/rpc/callers/refusal_pause.h"
#include "tests/integration/support/step_parts.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/random.h"

namespace gdn::memory_limits_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Waits until nothing is charged any more: a call's memory goes once its reply is with the transport.
bool WaitForNothingHeld(TestServer& server, BytePool pool) {
  return WaitUntil([&] { return server.server().ledger().held(pool) == 0; }, "memory that is not held any more");
}

class CallMemory : public testing::Test {
 protected:
  // 64 features of float32: 160 KiB a prefill, of which seven eighths of 1 MiB are five.
  static constexpr int64_t kPromptTokens = 640;

  v1::PrefillRequest Prompt(const std::string& id) const { return PrefillOf(id, 0, tokens_); }
  std::future<Outcome<v1::PrefillResponse>> Later(const std::string& id) const {
    return std::async(std::launch::async, [this, id] { return caller_.Prefill(Prompt(id)); });
  }
  // While two prompts wait, the caller has room for no third.
  void WhileTwoWait(const std::function<void()>& body) {
    std::vector<std::future<Outcome<v1::PrefillResponse>>> waiting;
    {
      EngineBlocker blocker(server_.batcher());
      // Each takes its message and its reply's room: 160 KiB both, and what any call takes.
      for (const char* id : {"s0", "s1"}) waiting.push_back(Later(id));
      EXPECT_TRUE(WaitForQueuedSteps(server_, 2));
      body();
    }
    for (auto& call : waiting) EXPECT_TRUE(call.get().ok());
  }

  const TempFolder folder_;
  TestServer server_{{.models = {{"m", GoldenPath("qwen3_5_5")}},
                      .listen = {"127.0.0.1:0", "unix:" + folder_.path() + "/s"},
                      .memory = {.call_bytes = kMiB},
                      .limits = {.max_message_bytes = kMiB / 4}}};
  const Caller caller_{server_};
  const Tokens tokens_ = RandomTokens(kPromptTokens, /*seed=*/1);
};

TEST_F(CallMemory, CallsOverTheCallersPartAreRefusedAndLeaveNoTrace) {
  for (const std::string& id : SessionIds(4)) ASSERT_TRUE(caller_.Create(id, "m").ok());
  const std::string fresh = caller_.State("s3");
  WhileTwoWait([&] {
    const Outcome<v1::PrefillResponse> refused = caller_.Prefill(Prompt("s3"));
    EXPECT_TRUE(RefusedAs(refused, "BYTES_EXHAUSTED", {{"pool", "call"}, {"limit", std::to_string(kMiB)}}));
    EXPECT_TRUE(HasRetryInfo(refused.status));
    const StepPart prompt = {.id = "s3", .tokens = tokens_, .kind = v1::STEP_KIND_PREFILL};
    const Outcome<v1::StepResponse> step = caller_.Step(StepOf({prompt, {.id = "s2", .tokens = tokens_.Token(0)}}));
    EXPECT_TRUE(RefusedAs(step, "BYTES_EXHAUSTED", {{"pool", "call"}, {"limit", std::to_string(kMiB)}}));
    EXPECT_TRUE(HasRetryInfo(step.status));
    // A caller from another address finds the room that the first may not use. Small calls of the first still pass.
    const auto elsewhere = Client::Connect(server_.server().addresses()[1]);
    EXPECT_TRUE(elsewhere->GetServerInfo().ok());
    EXPECT_TRUE(caller_.Get("s3").ok());
  });
  EXPECT_EQ(caller_.State("s3"), fresh);
  EXPECT_TRUE(WaitForNothingHeld(server_, BytePool::kCalls));
  EXPECT_TRUE(caller_.Prefill(Prompt("s3")).ok());
  EXPECT_EQ(caller_.TokenCount("s3", 0), kPromptTokens);
}

TEST_F(CallMemory, AStreamsMessagesAreRefusedOneByOne) {
  for (const std::string& id : SessionIds(3)) ASSERT_TRUE(caller_.Create(id, "m").ok());
  const auto context = caller_.NewContext();
  const auto stream = server_.stub().StreamPrefill(context.get());
  v1::StreamPrefillResponse reply;
  WhileTwoWait([&] {
    ASSERT_TRUE(stream->Write(StreamSegment(Prompt("s2"))) && stream->Read(&reply));
    EXPECT_EQ(ErrorInfoOf(reply.status()).reason(), "BYTES_EXHAUSTED");
  });
  EXPECT_TRUE(WaitForNothingHeld(server_, BytePool::kCalls));
  v1::PrefillRequest again = Prompt("s2");
  again.set_expected_token_count(0);
  ASSERT_TRUE(stream->Write(StreamSegment(again)) && stream->Read(&reply));
  EXPECT_TRUE(reply.has_result()) << reply.status().message();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(CallMemory, ARefusalOfAStepIsNotToldAtOnce) {
  for (const std::string& id : SessionIds(3)) ASSERT_TRUE(caller_.Create(id, "m").ok());
  const auto context = caller_.NewContext();
  const auto stream = server_.stub().StreamPrefill(context.get());
  v1::StreamPrefillResponse reply;
  WhileTwoWait([&] {
    const SteadyTime begin = SteadyNow();
    EXPECT_TRUE(RefusedAs(caller_.Prefill(Prompt("s2")), "BYTES_EXHAUSTED"));
    const SteadyTime middle = SteadyNow();
    ASSERT_TRUE(stream->Write(StreamSegment(Prompt("s2"))) && stream->Read(&reply));
    EXPECT_EQ(ErrorInfoOf(reply.status()).reason(), "BYTES_EXHAUSTED");
    // gRPC's timers count whole milliseconds.
    EXPECT_GE(middle - begin, RefusalPauses::kPause - absl::Milliseconds(2));
    EXPECT_GE(SteadyNow() - middle, RefusalPauses::kPause - absl::Milliseconds(2));
    // One whose client does not wait for it ends all the same.
    const auto hasty = caller_.NewContext();
    hasty->set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(10)));
    EXPECT_EQ(caller_.Prefill(*hasty, Prompt("s2")).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  });
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(CallMemory, AStreamKeepsNoNamesThatCannotBeSessions) {
  const auto context = caller_.NewContext();
  const auto stream = server_.stub().StreamPrefill(context.get());
  v1::StreamPrefillResponse reply;
  const auto send = [&](int i) {
    v1::PrefillRequest segment = PrefillOf("", 0, tokens_.Slice(0, 1));
    segment.set_session("sessions/" + std::string(200'000, 'x') + std::to_string(i));
    ASSERT_TRUE(stream->Write(StreamSegment(segment)) && stream->Read(&reply));
    EXPECT_EQ(ErrorInfoOf(reply.status()).reason(), "INVALID_NAME");
  };
  for (int i = 0; i < 20; ++i) send(i);
  const auto before = mallinfo2();
  for (int i = 20; i < 220; ++i) send(i);
  const auto after = mallinfo2();
  EXPECT_LT(after.uordblks + after.hblkhd, before.uordblks + before.hblkhd + 20 * kMiB) << "40 MB of names";
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(CallMemory, AStreamOfTooManySessionsWithGapsEnds) {
  const auto context = caller_.NewContext();
  const auto stream = server_.stub().StreamPrefill(context.get());
  v1::StreamPrefillResponse reply;
  int sent = 0;
  for (; sent < 10'000; ++sent) {
    if (!stream->Write(StreamSegment(PrefillOf("s" + std::to_string(sent), 0, tokens_.Slice(0, 1))))) break;
    if (!stream->Read(&reply)) break;
    EXPECT_EQ(ErrorInfoOf(reply.status()).reason(), "SESSION_NOT_FOUND");
  }
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(RefusedAs(status, "BYTES_EXHAUSTED"));
  EXPECT_GE(sent, 4096);
  EXPECT_LT(sent, 5000);
}

// Sessions whose files no connection can hold on its way: 4 layers of more than 2 MiB each.
class CopyMemory : public testing::Test {
 protected:
  static constexpr int kLayers = 4;
  static LayerDims Dims() {
    return OperatorDims(/*key_heads=*/8, /*value_heads=*/32, /*key_dim=*/128, /*value_dim=*/128);
  }
  static int64_t SessionBytes() { return kLayers * StateLayout::Make(Dims(), /*max_draft=*/8)->slot_bytes(); }
  static v1::OperatorSpec Spec() {
    v1::OperatorSpec spec;
    spec.set_key_heads(Dims().key_heads);
    spec.set_value_heads(Dims().value_heads);
    spec.set_key_dim(Dims().key_dim);
    spec.set_value_dim(Dims().value_dim);
    spec.set_layer_count(kLayers);
    return spec;
  }
  // A session that has seen a token in every layer.
  static void Start(const Caller& caller, const std::string& id) {
    ASSERT_TRUE(caller.CreateOperator(id, Spec()).ok());
    Random random(1);
    for (int layer = 0; layer < kLayers; ++layer) {
      v1::PrefillRequest request;
      request.set_session("sessions/" + id);
      request.set_layer(layer);
      *request.mutable_delta_rule() = DeltaRuleOf(RandomDeltaRuleInputs(Dims(), /*tokens=*/1, random), {1});
      ASSERT_REPLY(const auto reply, caller.Prefill(request));
    }
  }
};

TEST_F(CopyMemory, AnImportTakesWhatHasComeAndNotWhatIsSaidToCome) {
  TestServer server;
  const Caller caller(server);
  const auto context = caller.NewContext();
  v1::ImportStateResponse response;
  const auto stream = server.stub().ImportState(context.get(), &response);
  v1::ImportStateRequest target;
  target.mutable_target()->set_session_id("a");
  *target.mutable_target()->mutable_operator_() = Spec();
  target.mutable_target()->set_total_bytes(SessionBytes());
  v1::ImportStateRequest data;
  data.set_data(std::string(5000, '\0'));
  data.mutable_data()->replace(0, 2, "\x40\x1f");  // a header of 8,000 bytes, most of it still to come
  ASSERT_TRUE(stream->Write(target) && stream->Write(data));
  const ByteLedger& ledger = server.server().ledger();
  EXPECT_TRUE(WaitUntil([&] { return ledger.held(BytePool::kCopies) > 0; }, "memory for the file"));
  EXPECT_LE(ledger.held(BytePool::kCopies), kMiB);
  context->TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(WaitForNothingHeld(server, BytePool::kCopies));
}

TEST_F(CopyMemory, ExportsThatNobodyReadsAreCountedAndLaterOnesRefused) {
  TestServer server({.memory = {.copy_bytes = 3 * SessionBytes()}});
  const Caller caller(server);
  Start(caller, "a");
  const ByteLedger& ledger = server.server().ledger();
  const auto context = caller.NewContext();
  v1::ExportStateRequest request;
  request.set_name("sessions/a");
  const auto slow = server.stub().ExportState(context.get(), request);
  EXPECT_TRUE(WaitUntil([&] { return ledger.held(BytePool::kCopies) > 0; }, "the export's copy"));
  const Outcome<std::string> refused = caller.Export(request);
  EXPECT_TRUE(RefusedAs(refused, "BYTES_EXHAUSTED", {{"pool", "copy"}}));
  EXPECT_TRUE(HasRetryInfo(refused.status));
  context->TryCancel();
  slow->Finish();
  EXPECT_TRUE(WaitForNothingHeld(server, BytePool::kCopies));
  EXPECT_TRUE(caller.Export(request).ok());
}

TEST_F(CopyMemory, AWatchWaitsForMemoryAndGoesOn) {
  TestServer server({.memory = {.copy_bytes = 3 * SessionBytes()}});
  const Caller caller(server);
  Start(caller, "a");
  ByteLedger& ledger = server.server().ledger();
  auto taken = ledger.TryCharge(BytePool::kCopies, ledger.AccountOf("", ""), 2 * SessionBytes());
  ASSERT_TRUE(taken.ok()) << taken.status();
  const auto context = caller.NewContext();
  v1::WatchStateRequest request;
  request.set_name("sessions/a");
  request.set_every_tokens(1);
  const auto watch = server.stub().WatchState(context.get(), request);
  auto read = std::async(std::launch::async, [&] {
    v1::WatchStateResponse piece;
    return watch->Read(&piece);
  });
  taken->Release();
  EXPECT_TRUE(read.get());
  context->TryCancel();
  watch->Finish();
}

}  // namespace
}  // namespace gdn::memory_limits_test
