// Calls of snapshots and leases while Redis or the disk hangs. Calls that need the hung part are refused while it
// hangs, and do not wait for it again and again; the others are answered.
//
// No test looks at a clock. The calls end before the hung part is released.
#include <gtest/gtest.h>

#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_unary_call.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/integration/support/hung_disk.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/snapshot_calls.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"
#include "tests/support/tcp_proxy.h"
#include "tests/support/temp_folder.h"

namespace gdn::hung_snapshots_test {
namespace {

using Stub = v1::GdnService::Stub;

constexpr TokenRange kPrompt = {0, 3};
constexpr int64_t kOwn = 40;  // where tokens begin that only the owner of a snapshot takes
constexpr int kRounds = 10;

Outcome<v1::OpenLeaseResponse> Open(const Caller& caller, const std::string& id) {
  v1::OpenLeaseRequest request;
  request.set_lease_id(id);
  request.mutable_grace()->set_seconds(3600);
  return Call(caller, &Stub::OpenLease, request);
}

template <typename Request, typename Response>
Outcome<Response> OnLease(const Caller& caller, UnaryMethod<Request, Response> method, const std::string& id) {
  Request request;
  request.set_name("leases/" + id);
  return Call(caller, method, request);
}

// Returns the reason of the one key's error; "": it was deleted.
std::string DeleteKey(const Caller& caller, const std::string& key) {
  v1::DeleteSnapshotsRequest request;
  request.add_keys(key);
  const auto deleted = Call(caller, &Stub::DeleteSnapshots, request);
  if (!deleted.ok()) return deleted.reason();
  return deleted.reply.statuses(0).code() == 0 ? "" : ErrorInfoOf(deleted.reply.statuses(0)).reason();
}

std::vector<std::string> Keys(const Caller& caller) {
  const auto listed = Call(caller, &Stub::ListSnapshots, v1::ListSnapshotsRequest());
  EXPECT_TRUE(listed.ok()) << listed.status.error_message();
  std::vector<std::string> keys;
  for (const v1::Snapshot& snapshot : listed.reply.snapshots()) keys.push_back(snapshot.key());
  return keys;
}

// Returns how many calls of this method have ended on the server.
int64_t EndedCalls(const Caller& caller, const std::string& method) {
  const std::string begin = "gdn_rpc_duration_seconds_count{method=\"" + method + "\"";
  const std::string text = caller.Metrics().reply.text();
  int64_t ended = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.substr(0, begin.size()) != begin) continue;
    ended += std::atoll(std::string(line.substr(line.rfind(' ') + 1)).c_str());
  }
  return ended;
}

class HungSnapshots : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    redis_.Start();
  }
  GdnServerOptions Options() const {
    return {.memory = {.host_state_bytes = int64_t{64} << 20},
            .states = {.disk = {.directory = folder_.path()}, .redis = {.endpoint = redis_.endpoint()}}};
  }

  // A tenant's sessions and snapshots rest in this tier, and `hang` makes it hang until `release`.
  void TestTier(v1::StateTier tier, size_t number, const std::string& name, const std::function<void()>& hang,
                const std::function<void()>& release) {
    TestServer server(Options());
    const Caller tenant(server, "tenant"), bystander(server, "bystander");
    ASSERT_TRUE(Open(tenant, "lease").ok());
    feed_.Start(tenant, "owner", kPrompt);
    v1::CreateSessionRequest leased = feed_.Creation("leased");
    leased.set_lease("leases/lease");
    ASSERT_TRUE(tenant.Create(leased).ok());
    feed_.DecodeAll(tenant, "leased", kPrompt);
    for (const auto& [id, key] : {std::pair("owner", "k"), {"owner", "unwanted"}, {"leased", "leased-k"}}) {
      ASSERT_TRUE(Take(tenant, id, key).ok());
      feed_.DecodeAll(tenant, id, {kOwn, 1});
      SendSnapshotDown(tenant, key, number);
    }
    for (const char* id : {"owner", "leased"}) EXPECT_EQ(tenant.Evict(id, tier).reply.tier(), tier);
    feed_.Start(bystander, "own", kPrompt);

    hang();
    const auto free = absl::MakeCleanup(release);
    const auto refused = [&](const auto& outcome) {
      EXPECT_TRUE(RefusedAs(outcome, "TIER_UNAVAILABLE", {{"tier", name}}));
      EXPECT_TRUE(HasRetryInfo(outcome.status));
    };
    std::vector<std::thread> threads;
    const auto join = absl::MakeCleanup([&] {
      release();
      for (std::thread& thread : threads) thread.join();
    });
    const std::vector<std::function<void()>> calls = {[&] { refused(Take(tenant, "owner", "new")); },
                                                      [&] { refused(Begin(tenant, "child", "k")); },
                                                      [&] {
                                                        refused(ForkKey(tenant, "k", {"one", "two"}));
                                                      }};
    for (const auto& call : calls) {
      threads.emplace_back([call] {
        for (int round = 0; round < kRounds; ++round) call();
      });
    }
    for (int round = 0; round < kRounds; ++round) {
      const std::string key = "b" + std::to_string(round);
      ASSERT_TRUE(Take(bystander, "own", key).ok());
      EXPECT_EQ(Keys(bystander), std::vector<std::string>{key});
      ASSERT_TRUE(Begin(bystander, "from-" + key, key).ok());
      EXPECT_EQ(DeleteKey(bystander, key), "");
      ASSERT_TRUE(Open(bystander, "lease").ok());
      ASSERT_TRUE(OnLease(bystander, &Stub::RenewLease, "lease").ok());
      EXPECT_EQ(Call(bystander, &Stub::ListLeases, v1::ListLeasesRequest()).reply.leases_size(), 1);
      ASSERT_TRUE(OnLease(bystander, &Stub::EndLease, "lease").ok());
      ASSERT_TRUE(OnLease(tenant, &Stub::RenewLease, "lease").ok());
      EXPECT_EQ(Keys(tenant), (std::vector<std::string>{"k", "leased-k", "unwanted"}));
    }
    // Only the disk notes what is to be erased in another store, so a snapshot on a disk that hangs stays.
    const bool noted = tier != v1::STATE_TIER_DISK;
    EXPECT_EQ(DeleteKey(tenant, "unwanted"), noted ? "" : "TIER_UNAVAILABLE");
    ASSERT_REPLY(const auto ended, OnLease(tenant, &Stub::EndLease, "lease"));
    EXPECT_EQ(ended.ended_sessions(), 2);
    const std::vector<std::string> left =
        noted ? std::vector<std::string>{"k"} : std::vector<std::string>{"k", "unwanted"};
    EXPECT_EQ(Keys(tenant), left);
    for (std::thread& thread : threads) thread.join();
    threads.clear();

    release();
    ASSERT_TRUE(WaitUntil([&] { return Begin(tenant, "child", "k").ok(); }, "the tier answers"));
    feed_.Start(tenant, "plain", kPrompt);
    EXPECT_EQ(tenant.State("child"), tenant.State("plain"));
    EXPECT_TRUE(Take(tenant, "owner", "new").ok());
    if (!noted) {
      EXPECT_EQ(DeleteKey(tenant, "unwanted"), "");
    }
    EXPECT_EQ(Keys(tenant), (std::vector<std::string>{"k", "new"}));
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
  RedisServer redis_{{.tcp = true}};
};

TEST_F(HungSnapshots, InARedisThatHangsAreRefusedAndOthersAreNot) {
  TestTier(
      v1::STATE_TIER_REDIS, 2, "redis", [this] { redis_.Stop(); }, [this] { redis_.Continue(); });
}

TEST_F(HungSnapshots, OnADiskThatHangsAreRefusedAndOthersAreNot) {
  std::unique_ptr<HungDisk> disk;
  TestTier(
      v1::STATE_TIER_DISK, 1, "disk", [&] { disk = std::make_unique<HungDisk>(); }, [&] { disk->Release(); });
}

// A client that gives up does not leave its calls behind on the server.
TEST_F(HungSnapshots, EndOnTheServerThoughTheStoreHangsAndTheirClientsAreGone) {
  constexpr int kCalls = 20;
  TestServer server(Options());
  const Caller caller(server);
  feed_.Start(caller, "owner", kPrompt);
  ASSERT_TRUE(Take(caller, "owner", "k").ok());
  feed_.DecodeAll(caller, "owner", {kOwn, 1});
  SendSnapshotDown(caller, "k", 2);
  EXPECT_EQ(caller.Evict("owner", v1::STATE_TIER_REDIS).reply.tier(), v1::STATE_TIER_REDIS);
  const auto ended = [&] { return EndedCalls(caller, "SnapshotSession") + EndedCalls(caller, "ForkSession"); };
  const int64_t before = ended();
  redis_.Stop();
  const auto release = absl::MakeCleanup([&] { redis_.Continue(); });
  v1::ForkSessionRequest fork;
  fork.set_snapshot("k");
  fork.add_session_ids("child");
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientAsyncResponseReader<v1::SnapshotSessionResponse>>> taken(kCalls);
  std::vector<std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ForkSessionResponse>>> forked(kCalls);
  std::vector<v1::SnapshotSessionResponse> snapshots(kCalls);
  std::vector<v1::ForkSessionResponse> forks(kCalls);
  std::vector<grpc::Status> statuses(2 * kCalls);
  for (size_t i = 0; i < kCalls; ++i) {
    contexts.push_back(caller.NewContext());
    taken[i] = server.stub().AsyncSnapshotSession(contexts.back().get(), SnapshotOf("owner", "new"), &queue);
    taken[i]->Finish(&snapshots[i], &statuses[2 * i], nullptr);
    contexts.push_back(caller.NewContext());
    forked[i] = server.stub().AsyncForkSession(contexts.back().get(), fork, &queue);
    forked[i]->Finish(&forks[i], &statuses[2 * i + 1], nullptr);
  }
  EXPECT_TRUE(caller.Info().ok());  // the same connection's calls have arrived
  for (const auto& context : contexts) context->TryCancel();
  for (size_t i = 0; i < contexts.size(); ++i) {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
  }
  queue.Shutdown();
  EXPECT_TRUE(WaitUntil([&] { return ended() == before + 2 * kCalls; }, "the calls' ends"));
}

class HungLeases : public HungSnapshots {
 protected:
  static GdnServerOptions InFleet(const std::string& name, int redis_port) {
    return GdnServerOptions{.states = {.redis = {.endpoint = "127.0.0.1:" + std::to_string(redis_port),
                                                 .share_sessions = true,
                                                 .node_name = name}},
                            .fleet = {.lease = absl::Minutes(5), .notice = absl::ZeroDuration()}};
  }
};

// Leases of a fleet are in Redis. If it hangs, their calls must not hold the threads that others' transfers need.
TEST_F(HungLeases, OfAFleetAreRefusedAndAskAHungRedisAFewTimesOnly) {
  constexpr int kCalls = 60;
  TcpProxy proxy(redis_.port());
  TestServer server(InFleet("here", proxy.port()));
  const Caller tenant(server, "tenant"), bystander(server, "bystander");
  // Redis may carry out an end late that was refused, so it is another lease that is ended.
  for (const char* const id : {"lease", "ended"}) ASSERT_TRUE(Open(tenant, id).ok());
  feed_.Start(bystander, "own", kPrompt);
  const std::string state = bystander.State("own");
  redis_.Stop();
  const auto release = absl::MakeCleanup([&] { redis_.Continue(); });
  const int64_t accepted = proxy.accepted();
  std::vector<std::thread> threads;
  for (int i = 0; i < kCalls; ++i) {
    threads.emplace_back([&, i] {
      const auto refused = [](const auto& outcome) {
        EXPECT_TRUE(RefusedAs(outcome, "TIER_UNAVAILABLE", {{"tier", "redis"}}));
      };
      if (i % 3 == 0) refused(Open(tenant, "new-" + std::to_string(i)));
      if (i % 3 == 1) refused(OnLease(tenant, &Stub::RenewLease, "lease"));
      if (i % 3 == 2) refused(OnLease(tenant, &Stub::EndLease, "ended"));
      EXPECT_TRUE(Call(tenant, &Stub::ListLeases, v1::ListLeasesRequest()).ok());
    });
  }
  for (int round = 0; round < kRounds; ++round) EXPECT_EQ(bystander.State("own"), state);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(proxy.accepted() - accepted, kCalls / 2) << "each call has waited for Redis";
  redis_.Continue();
  EXPECT_TRUE(WaitUntil([&] { return OnLease(tenant, &Stub::RenewLease, "lease").ok(); }, "Redis answers"));
  EXPECT_TRUE(Open(tenant, "another").ok());
}

}  // namespace
}  // namespace gdn::hung_snapshots_test
