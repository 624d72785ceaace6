// Redis with a replica and a Sentinel: what counts as written, and where the master is.
#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "state_store/tiers/redis/redis_endpoint.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/redis_tier_fixture.h"

namespace gdn::redis_failover_test {
namespace {

using ::testing::HasSubstr;

const StateKey kKey{.principal = "ab12", .id = "chat-1", .checkpoint = ""};
constexpr absl::Duration kPatience = absl::Seconds(4);  // with a replica on a machine that is busy

class RedisFailoverTest : public RedisTierFixture {
 protected:
  void SetUp() override {
    RedisTierFixture::SetUp();
    if (IsSkipped()) return;
    server_.emplace(RedisServerOptions{.tcp = true, .arguments = {"--repl-diskless-sync-delay", "0"}});
    server_->Start();
    replica_.emplace(
        RedisServerOptions{.tcp = true, .arguments = {"--replicaof", "127.0.0.1", std::to_string(server_->port())}});
    replica_->Start();
    WaitFor([&] { return server_->Command({"WAIT", "1", "100"}) == "1"; }, "the replica to follow");
  }
  template <typename Condition>
  static void WaitFor(Condition condition, const std::string& what) {
    const absl::Time end = absl::Now() + absl::Minutes(2);
    while (!condition()) {
      ASSERT_LT(absl::Now(), end) << "waited in vain for " << what;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  absl::Status Store(RedisTier& tier, uint64_t seed) {
    return tier.Store(kKey, MakeImage(MakeModelSession(seed), memory_.host)).status();
  }

  std::optional<RedisServer> replica_;
};

TEST_F(RedisFailoverTest, AStateCountsAsStoredOnceAReplicaHasIt) {
  const auto tier = Connect(*server_, {.wait = {.replicas = 1, .timeout = kPatience}});
  ASSERT_TRUE(tier->NextIncarnation().ok());
  ASSERT_TRUE(Store(*tier, 1).ok());
  replica_->Stop();
  const absl::Status refused = Store(*tier, 2);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(ErrorReason(refused), reason::kTierUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("with 0 replicas"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--redis-wait-replicas wants 1"));
  replica_->Continue();
  EXPECT_TRUE(Store(*tier, 3).ok());
  server_->Kill();
  replica_->Command({"REPLICAOF", "NO", "ONE"});
  ExpectLoads(*Connect(*replica_), kKey, MakeModelSession(3));
}

TEST_F(RedisFailoverTest, ASentinelLeadsToTheNewMasterWithAllThatCountedAsStored) {
  RedisServer sentinel({.sentinel_of = server_->port()});
  sentinel.Start();
  WaitFor(
      [&] {
        return sentinel.Command({"SENTINEL", "replicas", RedisServer::kMasterName}) != "";
      },
      "the Sentinel to find the replica");
  // One that is not there is passed over.
  RedisTierOptions options{.connect_timeout = absl::Milliseconds(500), .wait = {.replicas = 1, .timeout = kPatience}};
  options.endpoint = "sentinel://127.0.0.1:1,127.0.0.1:" + std::to_string(sentinel.port()) + "/" +
                     std::string(RedisServer::kMasterName);
  absl::StatusOr<std::unique_ptr<RedisTier>> made = RedisTier::Make(options, memory_.host);
  ASSERT_TRUE(made.ok()) << made.status();
  RedisTier& tier = **made;
  EXPECT_EQ(tier.endpoint(), std::string("sentinel:") + RedisServer::kMasterName);
  ASSERT_TRUE(tier.NextIncarnation().ok());
  ASSERT_TRUE(Store(tier, 1).ok());

  server_->Kill();
  // Reading needs no replica: the one there was is the master now.
  WaitFor([&] { return tier.Load(kKey).ok(); }, "the failover");
  ExpectLoads(tier, kKey, MakeModelSession(1));
  EXPECT_THAT(std::string(Store(tier, 2).message()), HasSubstr("with 0 replicas")) << "none is left to confirm it";
  EXPECT_EQ(tier.set_backs(), 0) << "nothing was lost";

  // The old master comes back as a replica; a connection to it would be of no use.
  server_->Start();
  WaitFor([&] { return Store(tier, 3).ok(); }, "the old master to follow the new one");
  EXPECT_THAT(server_->Command({"ROLE"}), HasSubstr("slave"));
  ExpectLoads(tier, kKey, MakeModelSession(3));
}

TEST_F(RedisFailoverTest, AServerThatBecameAReplicaIsLeftAndSaidToBeOne) {
  const auto tier = Connect(*server_);
  ASSERT_TRUE(tier->NextIncarnation().ok());
  ASSERT_TRUE(Store(*tier, 1).ok());
  replica_->Command({"REPLICAOF", "NO", "ONE"});
  server_->Command({"REPLICAOF", "127.0.0.1", std::to_string(replica_->port())});
  const absl::Status refused = Store(*tier, 2);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("replica"));
}

TEST(RedisSentinelEndpoint, IsReadWithItsNameUserAndDatabase) {
  const auto endpoint = ParseRedisEndpoint("sentinel://g%40n@10.0.0.1,[::1]:26380,s3:26381/mymaster/2");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  ASSERT_EQ(endpoint->sentinels.size(), 3u);
  EXPECT_EQ(endpoint->sentinels[0].host, "10.0.0.1");
  EXPECT_EQ(endpoint->sentinels[0].port, 26379);
  EXPECT_EQ(endpoint->sentinels[1].host, "::1");
  EXPECT_EQ(endpoint->sentinels[1].port, 26380);
  EXPECT_EQ(endpoint->sentinels[2].port, 26381);
  EXPECT_EQ(endpoint->master_name, "mymaster");
  EXPECT_EQ(endpoint->user, "g@n");
  EXPECT_EQ(endpoint->db, 2);
  EXPECT_EQ(endpoint->ToString(), "sentinel:mymaster");
  for (const char* bad : {"sentinel://a:1", "sentinel://a:1/", "sentinel:///name", "sentinel://a:1,/name",
                          "sentinel://a:0/name", "sentinel://u:secret@a/name", "sentinel://a/name/x"}) {
    const absl::Status refused = ParseRedisEndpoint(bad).status();
    EXPECT_EQ(ErrorReason(refused), reason::kInvalidSpec) << bad;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("sentinel://"));
    EXPECT_EQ(std::string(refused.message()).find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace gdn::redis_failover_test
