// gRPC's own limits: what the server does to connections that take too much, as clients see it.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/create_channel.h>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/integration/support/raw_http2.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/test_server.h"

namespace gdn::transport_limits_test {
namespace {

constexpr int kForEver = 60'000;  // in milliseconds, to wait for what must come

GdnServerOptions With(const TransportLimits& limits) {
  GdnServerOptions options;
  options.transport = limits;
  return options;
}

// A connection of its own.
std::shared_ptr<grpc::Channel> Connect(const TestServer& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments);
}

grpc::Status GetInfo(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::GetServerInfoResponse response;
  return v1::GdnService::NewStub(channel)->GetServerInfo(&context, {}, &response);
}

// A call that goes on.
class OpenCall {
 public:
  explicit OpenCall(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::GdnService::NewStub(channel)) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(kForEver)));
    stream_ = stub_->StreamDecode(&context_);
  }
  ~OpenCall() {
    context_.TryCancel();
    End();
  }

  // True if the server answers on the stream. The answer is that there is no such session.
  bool Answers() {
    v1::StreamDecodeRequest request;
    request.mutable_step()->add_sessions("sessions/none");
    v1::StreamDecodeResponse response;
    return stream_->Write(request) && stream_->Read(&response) && response.status().code() != 0;
  }
  // Waits until the server has ended it.
  void AwaitEnd() {
    v1::StreamDecodeResponse response;
    while (stream_->Read(&response)) {
    }
  }
  grpc::Status End() {
    if (!std::exchange(ended_, true)) {
      stream_->WritesDone();
      status_ = stream_->Finish();
    }
    return status_;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::GdnService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamDecodeRequest, v1::StreamDecodeResponse>> stream_;
  bool ended_ = false;
  grpc::Status status_;
};

bool LeavesReady(const std::shared_ptr<grpc::Channel>& channel) {
  const absl::Time end = absl::Now() + absl::Milliseconds(kForEver);
  while (channel->GetState(false) == GRPC_CHANNEL_READY) {
    if (!channel->WaitForStateChange(GRPC_CHANNEL_READY, absl::ToChronoTime(end))) return false;
  }
  return true;
}

TEST(TransportLimits, CallsAboveAConnectionsStreamsWaitForThoseBeforeThem) {
  TestServer server(With({.streams_per_connection = 1}));
  const auto channel = Connect(server);
  OpenCall first(channel);
  ASSERT_TRUE(first.Answers());
  EXPECT_EQ(GetInfo(channel, absl::Milliseconds(300)).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(GetInfo(Connect(server), absl::Milliseconds(kForEver)).ok()) << "another connection has its own";
  EXPECT_TRUE(first.Answers());
  EXPECT_TRUE(first.End().ok());
  EXPECT_TRUE(GetInfo(channel, absl::Milliseconds(kForEver)).ok());
}

TEST(TransportLimits, AConnectionWithoutACallIsClosedAfterItsTimeAndTheNextCallMakesAnother) {
  TestServer server(With({.connection_idle = absl::Milliseconds(100)}));
  const auto channel = Connect(server);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(WaitUntil([&] { return GetInfo(channel, absl::Milliseconds(kForEver)).ok(); }, "an answer"));
    ASSERT_TRUE(LeavesReady(channel)) << "the connection stayed";
  }
}

TEST(TransportLimits, CallsOnAnOldConnectionHaveTheirGrace) {
  TestServer server(With({.connection_age = absl::Milliseconds(50), .connection_age_grace = absl::InfiniteDuration()}));
  const auto channel = Connect(server);
  OpenCall call(channel);
  ASSERT_TRUE(call.Answers());
  ASSERT_TRUE(LeavesReady(channel)) << "the connection stayed";
  EXPECT_TRUE(call.Answers()) << "it is begun, so it goes on";
  EXPECT_TRUE(call.End().ok());
}

TEST(TransportLimits, CallsOnAnOldConnectionEndWithTheirGrace) {
  TestServer server(With({.connection_age = absl::Milliseconds(50), .connection_age_grace = absl::Milliseconds(50)}));
  OpenCall call(Connect(server));
  call.AwaitEnd();
  EXPECT_EQ(call.End().error_code(), grpc::StatusCode::UNAVAILABLE) << call.End().error_message();
}

// Until the server has closed the connection; whether a frame came for which `wanted` is true.
template <typename Wanted>
bool Saw(RawHttp2& client, const Wanted& wanted) {
  bool saw = false;
  for (;;) {
    if (!client.Readable(kForEver)) {
      ADD_FAILURE() << "the server left the connection open";
      return saw;
    }
    const std::optional<Http2Frame> frame = client.Read();
    if (!frame.has_value()) return saw;
    saw |= wanted(*frame);
  }
}

TEST(TransportLimits, AClientThatAnswersNoPingIsDisconnectedAlsoWithoutACall) {
  TestServer server(With({.keepalive_time = absl::Milliseconds(100), .keepalive_timeout = absl::Milliseconds(100)}));
  RawHttp2 client(server.address());
  EXPECT_TRUE(Saw(client, [](const Http2Frame& frame) { return frame.type == Http2Frame::kPing && !frame.is_ack(); }));
}

TEST(TransportLimits, AClientThatPingsTooOftenIsDisconnected) {
  TestServer server(With({.min_ping_interval = absl::Hours(1)}));
  RawHttp2 client(server.address());
  for (int i = 0; i < 4; ++i) client.SendPing();  // the first is no abuse, two more are borne
  EXPECT_TRUE(Saw(client, [](const Http2Frame& frame) {
    return frame.type == Http2Frame::kGoAway && frame.error() == Http2Frame::kEnhanceYourCalm;
  }));
}

TEST(TransportLimits, AClientMayPingAsOftenAsItIsAllowedTo) {
  constexpr int kPings = 8;
  TestServer server(With({.min_ping_interval = absl::ZeroDuration()}));
  RawHttp2 client(server.address());
  for (int i = 0; i < kPings; ++i) ASSERT_TRUE(client.SendPing());
  int answers = 0;
  while (answers < kPings) {
    ASSERT_TRUE(client.Readable(kForEver)) << answers;
    const std::optional<Http2Frame> frame = client.Read();
    ASSERT_TRUE(frame.has_value()) << "disconnected after " << answers;
    answers += frame->type == Http2Frame::kPing && frame->is_ack();
  }
}

// A hundred connections, each with the first 60 KB of a message that never comes.
TEST(TransportLimits, HalfMessagesOnManyConnectionsTakeOnlySoMuchMemoryAndOthersAreServedAfterwards) {
  constexpr int kConnections = 128;
  constexpr size_t kSent = 60'000;
  GdnServerOptions options = With({.memory_bytes = int64_t{2} << 20});
  options.limits.max_message_bytes = 1 << 20;
  TestServer server(std::move(options));
  const std::string half = MessagePrefix(1 << 20) + std::string(kSent, 'x');
  {
    std::vector<std::unique_ptr<RawHttp2>> clients;
    const auto was_cut = [&] {
      for (const auto& client : clients) {
        while (client->Readable(0)) {
          const std::optional<Http2Frame> frame = client->Read();
          if (!frame.has_value()) return true;  // refused or closed
          if (frame->type != Http2Frame::kResetStream && frame->type != Http2Frame::kGoAway) continue;
          EXPECT_EQ(frame->error(), Http2Frame::kEnhanceYourCalm);
          return true;
        }
      }
      return false;
    };
    for (int i = 0; i < kConnections; ++i) {
      clients.push_back(std::make_unique<RawHttp2>(server.address()));
      if (!clients.back()->StartCall(1, "/gdn.v1.GdnService/Decode") || !clients.back()->SendData(1, half)) break;
    }
    EXPECT_TRUE(WaitUntil(was_cut, "an end to one of them"));
  }
  EXPECT_TRUE(WaitUntil([&] { return GetInfo(Connect(server), absl::Milliseconds(kForEver)).ok(); }, "an answer"));
}

}  // namespace
}  // namespace gdn::transport_limits_test
