// Something hangs instead of dying: Redis, the disk, another server of the fleet, a client that reads nothing. Others
// lose no call meanwhile, and the hung part is asked only a few times.
//
// No test looks at a clock. A bystander's calls end before the hung part is released.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "tests/integration/support/hung_disk.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"
#include "tests/support/tcp_proxy.h"

namespace gdn::hung_test {
namespace {

constexpr TokenRange kPrompt = {0, 3};
constexpr int kRounds = 10;
constexpr int kTenantSessions = 6;
// Calls of a store that may have begun before it is known to hang: those of the threads that load and evict.
constexpr int64_t kMostAsked = 4;

// A tenant whose sessions rest in a store that hangs, and who goes on calling for them, one thread a session.
class Tenant {
 public:
  Tenant(const Caller& caller, const TokenFeed& feed, v1::StateTier tier) : caller_(caller), feed_(feed) {
    for (const std::string& id : SessionIds(kTenantSessions)) {
      feed_.Start(caller_, id, kPrompt);
      EXPECT_EQ(caller_.Evict(id, tier).reply.tier(), tier);
    }
  }
  ~Tenant() { Join(); }
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  void Begin(const std::string& tier) {
    for (size_t i = 0; i < SessionIds(kTenantSessions).size(); ++i) {
      threads_.emplace_back([this, tier, id = SessionIds(kTenantSessions)[i], i] { StepUntilDone(id, tier, i); });
    }
  }
  // True if each of the tenant's sessions has been refused once.
  bool all_refused() const { return refused_sessions_ == kTenantSessions; }
  // Returns once each session has had its step.
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void StepUntilDone(const std::string& id, const std::string& tier, size_t index) {
    v1::DecodeRequest request = feed_.Decode({id}, TokenRange{kPrompt.count, 1});
    request.set_request_id("step-" + std::to_string(index));
    bool refused = false;
    while (true) {
      const auto reply = caller_.Decode(request);
      if (reply.ok()) return;
      EXPECT_TRUE(RefusedAs(reply, "TIER_UNAVAILABLE", {{"tier", tier}}));
      EXPECT_TRUE(HasRetryInfo(reply.status));
      if (!std::exchange(refused, true)) ++refused_sessions_;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  const Caller& caller_;
  const TokenFeed& feed_;
  std::atomic<int> refused_sessions_{0};
  std::vector<std::thread> threads_;
};

class Hung : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    redis_.Start();
  }
  // Room for three sessions on the device; every tier below it.
  GdnServerOptions Options() const {
    const int64_t bytes = steady_.CreateOperator("probe", SmallOperator(1)).reply.state_bytes();
    return {.memory = {.device_state_bytes = 7 * bytes / 2, .host_state_bytes = 100 * bytes},
            .states = {.disk = {.directory = folder_.path()}, .redis = {.endpoint = redis_.endpoint()}}};
  }
  // Steps the bystander's sessions, which are on the device, in host memory and in `other`, until the tenant has been
  // refused.
  void ExpectNoCallLost(const Caller& bystander, v1::StateTier other, const Tenant& tenant) {
    const std::vector<std::pair<std::string, v1::StateTier>> sessions = {
        {"device", v1::STATE_TIER_UNSPECIFIED}, {"host", v1::STATE_TIER_HOST}, {"other", other}};
    for (int64_t round = 0; round < kRounds || !tenant.all_refused(); ++round) {
      for (const auto& [id, tier] : sessions) {
        if (tier != v1::STATE_TIER_UNSPECIFIED) {
          const auto sent = bystander.Evict(id, tier);
          ASSERT_TRUE(sent.ok()) << "round " << round << ", " << id << ": " << sent.status.error_message();
        }
        const TokenRange token = {kPrompt.count + round % 100, 1};
        const auto context = bystander.NewContext();
        context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
        const auto reply = bystander.Decode(*context, feed_.Decode({id}, token));
        ASSERT_TRUE(reply.ok()) << "round " << round << ", " << id << ": " << reply.status.error_message();
        ASSERT_EQ(reply.reply.output().data(), feed_.DecodeAll(steady_, id, token)) << id;
      }
    }
  }
  void StartBystander(const Caller& bystander) {
    for (const Caller* caller : {&bystander, &steady_}) {
      for (const std::string id : {"device", "host", "other"}) feed_.Start(*caller, id, kPrompt);
    }
  }
  // After the release.
  void ExpectTenantAsUndisturbed(const Caller& tenant) {
    for (const std::string& id : SessionIds(kTenantSessions)) {
      feed_.Start(steady_, id, kPrompt, 1);
      EXPECT_EQ(tenant.State(id), steady_.State(id)) << id;
    }
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
  RedisServer redis_{{.tcp = true}};
  TestServer steady_server_;
  const Caller steady_{steady_server_};
};

TEST_F(Hung, ARedisThatHangsCostsNobodyElseACall) {
  TestServer server(Options());
  const Caller tenant_caller(server, "tenant"), bystander(server, "bystander");
  StartBystander(bystander);
  Tenant tenant(tenant_caller, feed_, v1::STATE_TIER_REDIS);
  redis_.Stop();
  const auto release = absl::MakeCleanup([&] { redis_.Continue(); });
  tenant.Begin("redis");
  ExpectNoCallLost(bystander, v1::STATE_TIER_DISK, tenant);
  EXPECT_LE(TierNamed(bystander, "redis").failures(), kMostAsked);
  EXPECT_NE(TierNamed(bystander, "redis").problem(), "");
  redis_.Continue();
  tenant.Join();
  ExpectTenantAsUndisturbed(tenant_caller);
  EXPECT_EQ(TierNamed(bystander, "redis").problem(), "");
}

TEST_F(Hung, ADiskThatHangsCostsNobodyElseACall) {
  TestServer server(Options());
  const Caller tenant_caller(server, "tenant"), bystander(server, "bystander");
  StartBystander(bystander);
  Tenant tenant(tenant_caller, feed_, v1::STATE_TIER_DISK);
  HungDisk disk;
  tenant.Begin("disk");
  ExpectNoCallLost(bystander, v1::STATE_TIER_REDIS, tenant);
  EXPECT_LE(disk.most_waiting(), kMostAsked);
  EXPECT_NE(TierNamed(bystander, "disk").problem(), "");
  disk.Release();
  tenant.Join();
  ExpectTenantAsUndisturbed(tenant_caller);
  EXPECT_EQ(TierNamed(bystander, "disk").problem(), "");
}

TEST_F(Hung, APeerThatHangsKeepsItsOwnSessionsAndNoOthers) {
  const auto options = [&](const std::string& name, int redis_port) {
    return GdnServerOptions{.states = {.redis = {.endpoint = "127.0.0.1:" + std::to_string(redis_port),
                                                 .share_sessions = true,
                                                 .node_name = name}},
                            .fleet = {.lease = absl::Minutes(5), .notice = absl::ZeroDuration()}};
  };
  TcpProxy proxy(redis_.port());
  TestServer hung(options("hung", proxy.port())), here(options("here", redis_.port()));
  const Caller from_hung(hung), caller(here);
  const std::vector<std::string> ids = SessionIds(kTenantSessions);  // more than there are threads for arrivals
  for (const std::string& id : ids) feed_.Start(from_hung, id, kPrompt);
  feed_.Start(caller, "own", kPrompt);
  {
    TestServer gone(options("gone", redis_.port()));
    const Caller from_gone(gone);
    for (int round = 0; round < kRounds; ++round) feed_.Start(from_gone, "free-" + std::to_string(round), kPrompt);
    EXPECT_TRUE(gone.Drain());
  }
  proxy.CutOff(true);
  const auto release = absl::MakeCleanup([&] { proxy.CutOff(false); });
  std::vector<std::thread> threads;
  for (const std::string& id : ids) {
    threads.emplace_back([&, id] {
      const auto step = [&] { return caller.Decode(feed_.Decode({id}, TokenRange{kPrompt.count, 1})); };
      for (auto reply = step(); !reply.ok(); reply = step()) {
        ASSERT_EQ(reply.status.error_code(), grpc::StatusCode::UNAVAILABLE) << reply.status.error_message();
        absl::SleepFor(absl::Milliseconds(10));
      }
    });
  }
  const auto join = absl::MakeCleanup([&] {
    proxy.CutOff(false);
    for (std::thread& thread : threads) thread.join();
  });
  ASSERT_TRUE(WaitUntil([&] { return here.server().fleet()->arrivals().waiting() == kTenantSessions; }, "the calls"));
  for (int64_t round = 0; round < kRounds; ++round) {
    feed_.DecodeAll(caller, "own", {kPrompt.count + round, 1});
    feed_.DecodeAll(caller, "free-" + std::to_string(round), {kPrompt.count, 1});
  }
  EXPECT_EQ(here.server().fleet()->arrivals().taken_over(), kRounds);
}

TEST_F(Hung, AClientThatReadsNothingHoldsUpNoOther) {
  TestServer server(
      {.memory = {.host_state_bytes = int64_t{64} << 20}, .states = {.disk = {.directory = folder_.path()}}});
  const Caller caller(server);
  const TokenFeed wide = TokenFeed::WideOperator();  // a state larger than what a connection takes unread
  for (const std::string id : {"unread", "read"}) wide.Start(caller, id, kPrompt);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::ExportStateResponse>>> unread;
  v1::ExportStateRequest request;
  request.set_name("sessions/unread");
  for (int i = 0; i < 8; ++i) {  // more than there are threads for transfers
    contexts.push_back(caller.NewContext());
    unread.push_back(server.stub().ExportState(contexts.back().get(), request));
  }
  for (int64_t round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(caller.Evict("read").ok());
    wide.DecodeAll(caller, "read", {kPrompt.count + round, 1});
    ASSERT_TRUE(caller.Export("read").ok());
    ASSERT_TRUE(caller.Checkpoint("read").ok());
  }
  for (size_t i = 0; i < contexts.size(); ++i) {
    contexts[i]->TryCancel();
    EXPECT_FALSE(unread[i]->Finish().ok());
  }
}

}  // namespace
}  // namespace gdn::hung_test
