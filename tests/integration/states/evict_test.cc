// EvictSession: sessions that are sent down, and go on where they were.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn::evict_test {
namespace {

class Eviction : public ::testing::Test {
 protected:
  GdnServerOptions HostAndDisk() const {
    return {.memory = {.host_state_bytes = int64_t{1} << 24},
            .states = {.disk = {.directory = folder_.path() + "/states"}}};
  }
  v1::StateTier TierOf(const Caller& caller, const std::string& id) const { return caller.Get(id).reply.tier(); }
  // "moves" is sent down before each of its tokens, "stays" never is: they give the same bytes.
  void ExpectTheSameBits(const GdnServerOptions& options, v1::StateTier tier) {
    TestServer server(options);
    const Caller caller(server);
    for (const char* id : {"moves", "stays"}) feed_.Start(caller, id, {0, 5});
    for (int64_t token = 5; token < 25; ++token) {  // over a fold of the log
      ASSERT_REPLY(const v1::Session sent, caller.Evict("moves", tier));
      EXPECT_EQ(sent.tier(), tier);
      EXPECT_EQ(TierOf(caller, "moves"), tier);
      ASSERT_EQ(feed_.DecodeAll(caller, "moves", {token, 1}), feed_.DecodeAll(caller, "stays", {token, 1})) << token;
      EXPECT_EQ(TierOf(caller, "moves"), v1::STATE_TIER_DEVICE);
    }
    EXPECT_EQ(caller.State("moves"), caller.State("stays"));
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
};

TEST_F(Eviction, ToHostMemoryChangesNoBit) { ExpectTheSameBits(HostAndDisk(), v1::STATE_TIER_HOST); }

TEST_F(Eviction, ToTheDiskChangesNoBit) { ExpectTheSameBits(HostAndDisk(), v1::STATE_TIER_DISK); }

TEST_F(Eviction, ToRedisChangesNoBit) {
  if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
  RedisServer redis;
  redis.Start();
  GdnServerOptions options = HostAndDisk();
  options.states.redis.endpoint = redis.endpoint();
  ExpectTheSameBits(options, v1::STATE_TIER_REDIS);
}

TEST_F(Eviction, GoesDownFromTierToTierAndNeverUp) {
  std::string before;
  {
    TestServer server(HostAndDisk());
    const Caller caller(server);
    feed_.Start(caller, "a", {0, 5}, /*decoded=*/3);
    before = caller.State("a");
    ASSERT_TRUE(caller.Evict("a").ok());
    EXPECT_EQ(TierOf(caller, "a"), v1::STATE_TIER_HOST) << "the fastest";
    EXPECT_FALSE(caller.Get("a").reply.has_durable_time());
    ASSERT_REPLY(const v1::Session lowered, caller.Evict("a", v1::STATE_TIER_DISK));
    EXPECT_EQ(lowered.tier(), v1::STATE_TIER_DISK);
    EXPECT_EQ(lowered.layers(0).durable_token_count(), 8);
    for (const v1::StateTier tier : {v1::STATE_TIER_UNSPECIFIED, v1::STATE_TIER_HOST, v1::STATE_TIER_DISK}) {
      ASSERT_REPLY(const v1::Session again, caller.Evict("a", tier));
      EXPECT_EQ(again.tier(), v1::STATE_TIER_DISK) << "it is below that already";
    }
    EXPECT_EQ(TierNamed(caller, "host").sessions(), 0);
  }  // as if it were killed
  TestServer next(HostAndDisk());
  EXPECT_EQ(Caller(next).State("a"), before) << "what is on the disk is durable";
}

TEST_F(Eviction, TakesDraftsForksAndRepliesAlong) {
  TestServer server(HostAndDisk());
  const Caller caller(server);
  feed_.Start(caller, "a", {0, 5});
  ASSERT_TRUE(caller.Fork("a", {"b"}).ok());
  const auto request = WithId(feed_.Decode({"a"}, TokenRange{5, 1}), "once");
  ASSERT_REPLY(const auto first, caller.Decode(request));
  ASSERT_TRUE(caller.Evict("a", v1::STATE_TIER_DISK).ok());
  ASSERT_REPLY(const auto again, caller.Decode(request));
  EXPECT_EQ(again.output().data(), first.output().data());
  EXPECT_EQ(caller.TokenCount("a", 0), 6) << "it was answered, and not done again";
  ASSERT_TRUE(caller.Decode(feed_.Draft({"a"}, {{6, 3}})).ok());
  ASSERT_TRUE(caller.Evict("a").ok());
  EXPECT_TRUE(caller.Accept("a", 2).ok());
  EXPECT_EQ(caller.TokenCount("a", 0), 8);
  EXPECT_EQ(TierOf(caller, "b"), v1::STATE_TIER_DEVICE);
  EXPECT_EQ(feed_.DecodeAll(caller, "b", {5, 3}).substr(0, first.output().data().size()), first.output().data());
}

TEST_F(Eviction, WaitsForTheStepThatRuns) {
  TestServer server(HostAndDisk());
  const Caller caller(server);
  feed_.Start(caller, "a", {0, 5});
  const auto session = *server.server().states().sessions().Find(/*principal=*/"", "a");
  EngineBlocker engine(server.batcher());
  std::thread step([&] { EXPECT_TRUE(caller.Decode(feed_.Decode({"a"}, TokenRange{5, 1})).ok()); });
  ASSERT_TRUE(WaitForQueuedSteps(server, 1));
  std::atomic<bool> evicted = false;
  std::thread evict([&] {
    ASSERT_REPLY(const v1::Session sent, caller.Evict("a"));
    EXPECT_EQ(sent.layers(0).token_count(), 6) << "the step was first";
    EXPECT_EQ(sent.tier(), v1::STATE_TIER_HOST);
    evicted = true;
  });
  const auto waits = [&] {
    if (!session->gate().TryPin()) return true;
    session->gate().Unpin();
    return false;
  };
  EXPECT_TRUE(WaitUntil(waits, "the eviction to wait for the step"));
  EXPECT_FALSE(evicted);
  engine.Release();
  step.join();
  evict.join();
  EXPECT_TRUE(evicted);
  EXPECT_EQ(feed_.DecodeAll(caller, "a", {6, 1}).empty(), false);
}

TEST_F(Eviction, IsRefusedBeforeAnythingMoves) {
  TestServer bare, host({.memory = {.host_state_bytes = int64_t{1} << 24}}),
      small({.memory = {.host_state_bytes = 16}});
  const Caller without(bare), with_host(host), with_little(small);
  for (const Caller* caller : {&without, &with_host, &with_little}) feed_.Start(*caller, "a", {0, 5});
  EXPECT_TRUE(RefusedAs(without.Evict("a"), "NO_DURABLE_TIER"));
  EXPECT_TRUE(RefusedAs(with_host.Evict("a", v1::STATE_TIER_DISK), "NO_DURABLE_TIER"));
  EXPECT_TRUE(RefusedAs(with_little.Evict("a"), "STATE_BUDGET_EXHAUSTED"));
  EXPECT_TRUE(RefusedAs(with_host.Evict("a", v1::STATE_TIER_DEVICE), "INVALID_SPEC", {{"field", "tier"}}));
  EXPECT_TRUE(RefusedAs(with_host.Evict("a", static_cast<v1::StateTier>(99)), "INVALID_SPEC", {{"field", "tier"}}));
  EXPECT_TRUE(RefusedAs(with_host.Evict("unknown"), "SESSION_NOT_FOUND"));
  EXPECT_TRUE(RefusedAs(with_host.Evict("no name"), "INVALID_NAME"));
  for (const Caller* caller : {&without, &with_host, &with_little}) {
    EXPECT_EQ(TierOf(*caller, "a"), v1::STATE_TIER_DEVICE);
    EXPECT_FALSE(feed_.DecodeAll(*caller, "a", {5, 1}).empty());
  }
}

}  // namespace
}  // namespace gdn::evict_test
