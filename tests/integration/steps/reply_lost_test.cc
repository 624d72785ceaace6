// A reply that is lost after its step was committed: the retry gets the same bytes, and the state has moved once.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/tcp_proxy.h"

namespace gdn::reply_lost_test {
namespace {

constexpr TokenRange kPrompt = {0, 9};

class ReplyLost : public ::testing::Test {
 protected:
  ReplyLost() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // the test decides when to try again
    channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(proxy_.port()),
                                         grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::GdnService::NewStub(channel_);
  }
  void SetUp() override {
    for (const char* id : {"a", "plain"}) feed_.Start(caller_, id, kPrompt);
    Connect();
  }
  // A call that goes through, so that the next one does not wait for a connection.
  void Connect() {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::GetServerInfoResponse info;
    ASSERT_TRUE(stub_->GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok());
  }
  int64_t Count() const { return caller_.TokenCount("a", 0); }

  // Runs `call` through the proxy with its reply dropped; once `committed` holds the connection breaks.
  template <typename Call, typename Committed>
  void LoseReply(const Call& call, const Committed& committed) {
    const int64_t dropped = proxy_.dropped_bytes();
    proxy_.DropReplies();
    auto answer = std::async(std::launch::async, call);
    EXPECT_TRUE(WaitUntil(committed, "the step to be committed"));
    EXPECT_TRUE(WaitUntil([&] { return proxy_.dropped_bytes() > dropped; }, "the reply to be dropped"));
    proxy_.CloseConnections();
    const grpc::Status lost = answer.get();
    EXPECT_EQ(lost.error_code(), grpc::StatusCode::UNAVAILABLE) << lost.error_message();
    // A call may end before its channel hears that the connection is gone. Until then the channel puts the next call on
    // that connection too, even one that waits for it to be ready, and with retries off that one is lost.
    EXPECT_TRUE(channel_->WaitForStateChange(GRPC_CHANNEL_READY, absl::ToChronoTime(absl::Now() + absl::Minutes(1))));
  }
  // The same for one call of a unary method.
  template <typename Request, typename Response, typename Committed>
  void LoseReplyOf(UnaryMethod<Request, Response> method, const Request& request, const Committed& committed) {
    const auto call = [&] {
      grpc::ClientContext context;
      Response response;
      return (stub_.get()->*method)(&context, request, &response);
    };
    LoseReply(call, committed);
  }

  TestServer server_;
  const Caller caller_{server_};
  const TokenFeed feed_ = TokenFeed::Operator(1);
  TcpProxy proxy_{server_.server().port()};
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GdnService::Stub> stub_;
};

TEST_F(ReplyLost, OfADecodeComesAgainByItsRequestId) {
  for (int64_t step = 0; step < 20; ++step) {  // over a fold
    const TokenRange token = {kPrompt.count + step, 1};
    v1::DecodeRequest request = WithId(feed_.Decode({"a"}, token), "s" + std::to_string(step));
    LoseReplyOf(&v1::GdnService::Stub::Decode, request, [&] { return Count() == token.first + 1; });
    ASSERT_REPLY(const auto retry, caller_.Decode(request));
    EXPECT_EQ(retry.output().data(), feed_.DecodeAll(caller_, "plain", token));
    EXPECT_EQ(retry.token_counts(0), token.first + 1);
    ASSERT_NO_FATAL_FAILURE(Connect());
  }
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
}

TEST_F(ReplyLost, OfAPrefillComesAgainByItsRequestId) {
  const TokenRange range = {kPrompt.count, 50};
  v1::PrefillRequest request = WithId(feed_.Prefill("a", range), "p");
  LoseReplyOf(&v1::GdnService::Stub::Prefill, request, [&] { return Count() == range.first + range.count; });
  ASSERT_REPLY(const auto retry, caller_.Prefill(request));
  EXPECT_EQ(retry.output().data(), caller_.Prefill(feed_.Prefill("plain", range)).reply.output().data());
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
}

TEST_F(ReplyLost, OfAnAcceptanceComesAgainByItsRequestId) {
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"a"}, {TokenRange{kPrompt.count, 8}})).ok());
  const v1::AcceptTokensRequest request = WithId(AcceptOf({"a"}, {5}), "v");
  LoseReplyOf(&v1::GdnService::Stub::AcceptTokens, request, [&] { return Count() == kPrompt.count + 5; });
  ASSERT_REPLY(const auto retry, caller_.Accept(request));
  EXPECT_EQ(retry.counts(0).layers(0).token_count(), kPrompt.count + 5);
  feed_.DecodeAll(caller_, "plain", {kPrompt.count, 5});
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
}

TEST_F(ReplyLost, OfAStepComesAgainForEachRow) {
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"a"}, {TokenRange{kPrompt.count, 8}})).ok());
  for (const char* id : {"b", "plain-b"}) feed_.Start(caller_, id, kPrompt);
  FeedPart accepts = {.id = "a", .range = {kPrompt.count + 5, 2}};
  accepts.accept = 5;
  const FeedPart prompt = {.id = "b", .range = {kPrompt.count, 50}, .kind = v1::STEP_KIND_PREFILL};
  const v1::StepRequest request = WithId(feed_.Step({accepts, prompt}), "s");
  LoseReplyOf(&v1::GdnService::Stub::Step, request,
              [&] { return Count() == kPrompt.count + 7 && caller_.TokenCount("b", 0) == kPrompt.count + 50; });
  feed_.DecodeAll(caller_, "plain", {kPrompt.count, 5});
  const std::string decoded = feed_.DecodeAll(caller_, "plain", {kPrompt.count + 5, 2});
  const std::string prefilled = caller_.Prefill(feed_.Prefill("plain-b", prompt.range)).reply.output().data();
  ASSERT_REPLY(const auto retry, caller_.Step(request));
  EXPECT_EQ(retry.output().data(), decoded + prefilled);
  EXPECT_EQ(retry.token_counts(0), kPrompt.count + 7);
  ASSERT_REPLY(const auto reversed, caller_.Step(WithId(feed_.Step({prompt, accepts}), "s")));
  EXPECT_EQ(reversed.output().data(), prefilled + decoded);
  ASSERT_REPLY(const auto one, caller_.Step(WithId(feed_.Step({accepts}), "s")));
  EXPECT_EQ(one.output().data(), decoded);
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
  EXPECT_EQ(caller_.State("b"), caller_.State("plain-b"));
}

TEST_F(ReplyLost, OfAForkComesAgainByTheSameRequest) {
  const v1::ForkSessionRequest request = ForkOf("a", {"x", "y"});
  LoseReplyOf(&v1::GdnService::Stub::ForkSession, request, [&] { return caller_.Get("y").ok(); });
  ASSERT_REPLY(const auto retry, caller_.Fork(request));
  EXPECT_EQ(retry.sessions_size(), 2);
  EXPECT_EQ(caller_.Info().reply.session_count(), 4);
  EXPECT_EQ(caller_.State("x"), caller_.State("a"));
}

TEST_F(ReplyLost, OnAStreamComesAgainOnTheNext) {
  const TokenRange token = {kPrompt.count, 1};
  const v1::StreamDecodeRequest request = StreamStep(WithId(feed_.Decode({"a"}, token), "s"));
  const auto call = [&] {
    grpc::ClientContext context;
    const auto stream = stub_->StreamDecode(&context);
    v1::StreamDecodeResponse response;
    EXPECT_TRUE(stream->Write(request));
    EXPECT_FALSE(stream->Read(&response)) << "the reply was to be lost";
    return stream->Finish();
  };
  LoseReply(call, [&] { return Count() == token.first + 1; });

  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const TokenRange after = {token.first + 1, 1};
  const auto replies =
      Converse(*stub_->StreamDecode(&context), {request, StreamStep(WithId(feed_.Decode({"a"}, after), "t"))});
  ASSERT_EQ(replies[0].status().code(), 0) << replies[0].status().message();
  EXPECT_EQ(replies[0].result().output().data(), feed_.DecodeAll(caller_, "plain", token));
  EXPECT_EQ(replies[1].result().output().data(), feed_.DecodeAll(caller_, "plain", after));
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
}

TEST_F(ReplyLost, OfAStepOnAStreamComesAgainOnTheNext) {
  v1::StreamStepRequest drafts, accepts;
  *drafts.mutable_step() = WithId(
      feed_.Step({{.id = "a", .range = {kPrompt.count, 4}, .kind = v1::STEP_KIND_DRAFT, .parents = {-1, 0, 0, 2}}}),
      "s");
  const auto call = [&] {
    grpc::ClientContext context;
    const auto stream = stub_->StreamStep(&context);
    v1::StreamStepResponse response;
    EXPECT_TRUE(stream->Write(drafts));
    EXPECT_FALSE(stream->Read(&response)) << "the reply was to be lost";
    return stream->Finish();
  };
  LoseReply(call, [&] { return caller_.Get("a").reply.layers(0).draft_length() == 4; });

  FeedPart next = {.id = "a", .range = {kPrompt.count + 4, 3}, .kind = v1::STEP_KIND_PREFILL};
  next.path = {0, 2, 3};
  *accepts.mutable_step() = WithId(feed_.Step({next}), "t");
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const auto replies = Converse(*stub_->StreamStep(&context), {drafts, accepts, accepts});
  for (const auto& reply : replies) ASSERT_EQ(reply.status().code(), 0) << reply.status().message();
  EXPECT_EQ(replies[1].SerializeAsString(), replies[2].SerializeAsString());
  v1::DecodeRequest plain = feed_.Draft({"plain"}, {TokenRange{kPrompt.count, 4}});
  for (const int parent : {-1, 0, 0, 2}) plain.add_draft_parents(parent);
  EXPECT_EQ(replies[0].result().output().data(), caller_.Decode(plain).reply.output().data());
  v1::AcceptTokensRequest path = AcceptOf({"plain"}, {0});
  for (const int token : next.path) path.mutable_acceptances(0)->add_path(token);
  ASSERT_TRUE(caller_.Accept(path).ok());
  EXPECT_EQ(replies[1].result().output().data(),
            caller_.Prefill(feed_.Prefill("plain", next.range)).reply.output().data());
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
}

}  // namespace
}  // namespace gdn::reply_lost_test
