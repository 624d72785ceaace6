// A client whose ring has ended, and a server that takes calls and hangs: what opening another ring costs is taken from
// the call's own timeout, and a message gets the rest.
//
// No test asks how long something took here. The fakes record how much time they were given.
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/owned_fd.h"
#include "client/cpp/client.h"
#include "client/cpp/ring_link.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/temp_folder.h"

namespace gdn::ring_hang_test {
namespace {

constexpr RingOptions kRing{.entries = 4, .area_bytes = 1 << 16};
// gRPC sends a call's remaining time with three digits, rounded up.
constexpr double kRounding = 1.02;
constexpr absl::Duration kShort = absl::Milliseconds(400);

absl::Mutex waits_mu(absl::kConstInit);
std::vector<absl::Duration> socket_waits;  // that the ring's sockets were given

// Takes calls, and answers only those that it is told to.
class HungService final : public v1::GdnService::Service {
 public:
  enum class Ring { kHangs, kHasASilentSocket };
  HungService(Ring ring, bool answers_steps) : ring_(ring), answers_steps_(answers_steps) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    socket_path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(silent_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(silent_.get(), /*backlog=*/64), 0);  // the system connects who comes; nobody answers
  }

  std::string socket_path() const { return folder_.path() + "/silent"; }
  // The time that each step had left when it arrived.
  std::vector<absl::Duration> steps() const {
    absl::MutexLock lock(&mu_);
    return steps_;
  }

  grpc::Status GetServerInfo(grpc::ServerContext* /*context*/, const v1::GetServerInfoRequest* /*request*/,
                             v1::GetServerInfoResponse* /*response*/) override {
    return grpc::Status::OK;
  }
  grpc::Status ShareMemory(grpc::ServerContext* context, const v1::ShareMemoryRequest* /*request*/,
                           grpc::ServerWriter<v1::ShareMemoryResponse>* writer) override {
    if (ring_ == Ring::kHasASilentSocket) {
      v1::ShareMemoryResponse response;
      response.mutable_ring()->set_socket_path(socket_path());
      response.mutable_ring()->set_token(std::string(32, 't'));
      writer->Write(response);
    }
    return UntilCancelled(*context);
  }
  grpc::Status Decode(grpc::ServerContext* context, const v1::DecodeRequest* /*request*/,
                      v1::DecodeResponse* /*response*/) override {
    return Step(*context);
  }
  grpc::Status Prefill(grpc::ServerContext* context, const v1::PrefillRequest* /*request*/,
                       v1::PrefillResponse* /*response*/) override {
    return Step(*context);
  }

 private:
  grpc::Status Step(const grpc::ServerContext& context) {
    const absl::Duration left = absl::FromChrono(context.deadline()) - absl::Now();
    {
      absl::MutexLock lock(&mu_);
      steps_.push_back(left);
    }
    return answers_steps_ ? grpc::Status::OK : UntilCancelled(context);
  }
  static grpc::Status UntilCancelled(const grpc::ServerContext& context) {
    while (!context.IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }

  const Ring ring_;
  const bool answers_steps_;
  const TempFolder folder_;
  const OwnedFd silent_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  mutable absl::Mutex mu_;
  std::vector<absl::Duration> steps_ ABSL_GUARDED_BY(mu_);
};

class RingAndHungServer : public testing::Test {
 protected:
  void SetUp() override {
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    options.shared_memory.directory = rings_.path();
    server_ = std::make_unique<TestServer>(std::move(options));
  }
  void TearDown() override {
    if (hung_server_ != nullptr) hung_server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }
  // Returns a client with a ring, whose server is then another one.
  std::unique_ptr<Client> ClientOfAHungServer(HungService& hung) {
    auto client = Client::Connect(server_->address());
    EXPECT_EQ(client->OpenRing(kRing), absl::OkStatus());
    const std::string address = server_->address();
    server_ = nullptr;
    EXPECT_TRUE(WaitUntil([&] { return !client->UsesRing(); }, "the ring to end with its server"));
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&hung);
    hung_server_ = builder.BuildAndStart();
    EXPECT_NE(hung_server_, nullptr);
    EXPECT_TRUE(WaitUntil([&] { return client->GetServerInfo().ok(); }, "the client to find the hung server"));
    return client;
  }
  static CallOptions Within(absl::Duration timeout) { return {.timeout = timeout, .affinity = ""}; }

  const TempFolder rings_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<grpc::Server> hung_server_;
};

TEST_F(RingAndHungServer, ACallWhoseRingHangsIsAMessageWithTheRestOfItsTime) {
  HungService hung(HungService::Ring::kHangs, /*answers_steps=*/true);
  const auto client = ClientOfAHungServer(hung);
  const auto reply = client->Decode(feed_.Decode({"a"}, TokenRange{0, 1}), Within(absl::Seconds(20)));
  EXPECT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(hung.steps().size(), 1);
  EXPECT_LE(hung.steps()[0], kRounding * absl::Seconds(18)) << "two seconds were for the ring";
}

TEST_F(RingAndHungServer, ADecodeThatNobodyAnswersHasHalfOfItsTimeLeftForTheMessage) {
  HungService hung(HungService::Ring::kHangs, /*answers_steps=*/false);
  const auto client = ClientOfAHungServer(hung);
  const auto reply = client->Decode(feed_.Decode({"a"}, TokenRange{0, 1}), Within(kShort));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded) << reply.status();
  // A loaded machine may let the whole time pass before the message arrives.
  for (const absl::Duration left : hung.steps()) EXPECT_LE(left, kRounding * kShort / 2);
}

TEST_F(RingAndHungServer, APrefillThatNobodyAnswersHasHalfOfItsTimeLeftForTheMessage) {
  HungService hung(HungService::Ring::kHangs, /*answers_steps=*/false);
  const auto client = ClientOfAHungServer(hung);
  const auto reply = client->Prefill(feed_.Prefill("a", TokenRange{0, 2}), Within(kShort));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded) << reply.status();
  for (const absl::Duration left : hung.steps()) EXPECT_LE(left, kRounding * kShort / 2);
}

TEST_F(RingAndHungServer, ARingWhoseSocketIsSilentGetsNoMoreTimeThanTheOpening) {
  HungService hung(HungService::Ring::kHasASilentSocket, /*answers_steps=*/true);
  const auto client = ClientOfAHungServer(hung);
  const auto waits = [] {
    absl::MutexLock lock(&waits_mu);
    return std::exchange(socket_waits, {});
  };
  waits();
  const auto reply = client->Decode(feed_.Decode({"a"}, TokenRange{0, 1}), Within(absl::Seconds(1)));
  const std::vector<absl::Duration> given = waits();
  // Half of the time is for the opening. A loaded machine may use it up before it connects to the socket.
  for (const absl::Duration wait : given) EXPECT_LE(wait, absl::Milliseconds(500));
  EXPECT_TRUE(reply.ok() || reply.status().code() == absl::StatusCode::kDeadlineExceeded) << reply.status();

  const absl::Status opened = client->OpenRing(kRing, Within(absl::Minutes(5)));
  EXPECT_EQ(opened.code(), absl::StatusCode::kUnimplemented) << opened;
  const std::vector<absl::Duration> most = waits();
  ASSERT_FALSE(most.empty());
  EXPECT_LE(*std::max_element(most.begin(), most.end()), absl::Seconds(2));
}

// An opener whose first ring is a server's; how the later ones end is the test's matter.
class RingLinkTime : public RingAndHungServer {
 protected:
  // Returns a link whose ring has ended. Each later opening takes `takes` and fails.
  std::unique_ptr<RingLink> EndedLink(absl::Duration takes) {
    stub_ = v1::GdnService::NewStub(server_->channel());
    auto link = RingLink::Open(
        [this, takes](absl::Duration timeout) -> absl::StatusOr<std::unique_ptr<RingChannel>> {
          given_.push_back(timeout);
          if (given_.size() == 1) {
            return RingChannel::Open(*stub_, std::make_unique<grpc::ClientContext>(), kRing, timeout);
          }
          absl::SleepFor(takes);
          return absl::UnavailableError("nobody is there");
        },
        absl::Seconds(30));
    EXPECT_TRUE(link.ok()) << link.status();
    server_ = nullptr;
    EXPECT_TRUE(WaitUntil([&] { return !(*link)->open(); }, "the ring to end with its server"));
    return *std::move(link);
  }
  // Asks for a ring until the link has tried to open one. Returns what is left of the timeout then.
  absl::Duration LeftAfterAnOpening(RingLink& link, absl::Duration timeout) {
    const size_t before = given_.size();
    absl::Duration left = timeout;
    const auto tried = [&] {
      left = timeout;
      EXPECT_EQ(link.ForCall(left), nullptr);
      if (given_.size() > before) return true;
      EXPECT_EQ(left, timeout) << "nothing was opened";
      return false;
    };
    EXPECT_TRUE(WaitUntil(tried, "the link to open a ring"));
    return left;
  }

  std::unique_ptr<v1::GdnService::Stub> stub_;
  std::vector<absl::Duration> given_;
};

TEST_F(RingLinkTime, AnOpeningGetsHalfOfTheTimeAndTwoSecondsAtMost) {
  const auto link = EndedLink(absl::Milliseconds(20));
  EXPECT_EQ(given_, std::vector{absl::Seconds(30)});
  EXPECT_LE(LeftAfterAnOpening(*link, absl::Milliseconds(400)), absl::Milliseconds(390));
  EXPECT_LE(LeftAfterAnOpening(*link, absl::Seconds(60)), absl::Seconds(60) - absl::Milliseconds(10));
  EXPECT_EQ(LeftAfterAnOpening(*link, absl::InfiniteDuration()), absl::InfiniteDuration());
  EXPECT_EQ(given_, (std::vector{absl::Seconds(30), absl::Milliseconds(200), absl::Seconds(2), absl::Seconds(2)}));
}

TEST_F(RingLinkTime, AnOpeningThatTakesTooLongLeavesTheCallATimeout) {
  const auto link = EndedLink(absl::Milliseconds(20));
  // A timeout of no time at all would be none in some places.
  EXPECT_EQ(LeftAfterAnOpening(*link, absl::Milliseconds(10)), absl::Microseconds(1));
}

}  // namespace
}  // namespace gdn::ring_hang_test

// The linker gives the program's own objects this function in place of setsockopt.
extern "C" {
int __real_setsockopt(int fd, int level, int name, const void* value, socklen_t bytes);
int __wrap_setsockopt(int fd, int level, int name, const void* value, socklen_t bytes) {
  if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO)) {
    absl::MutexLock lock(&gdn::ring_hang_test::waits_mu);
    gdn::ring_hang_test::socket_waits.push_back(absl::DurationFromTimeval(*static_cast<const timeval*>(value)));
  }
  return __real_setsockopt(fd, level, name, value, bytes);
}
}
