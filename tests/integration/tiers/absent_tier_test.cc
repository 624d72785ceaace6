// Sessions whose newest state is not in the tier that checkpoints go to first: the disk is full or failing and Redis
// has it, Redis is away when a server starts, or is not used any more. Nothing older is served, and nothing is lost.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn::absent_tier_test {
namespace {

namespace fs = std::filesystem;

class AbsentTier : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    redis_.Start();
  }
  GdnServerOptions Both() const {
    return {.states = {.disk = {.directory = Disk()}, .redis = {.endpoint = redis_.endpoint()}}};
  }
  std::string Disk() const { return folder_.path() + "/disk"; }
  std::string SessionFolder(const std::string& id) const { return Disk() + "/sessions/anonymous/s-" + id; }

  void Start(const Caller& caller, const std::string& id) {
    feed_.Start(caller, id, {0, 3});
    feed_.Start(steady_, id, {0, 3});
  }
  std::string Step(const Caller& caller, const std::string& id, int64_t token) {
    return feed_.DecodeAll(caller, id, {token, 1});
  }
  void ExpectAsSteady(const Caller& caller, const std::string& id, int64_t epoch) {
    ASSERT_REPLY(const auto session, caller.Get(id));
    EXPECT_EQ(session.epoch(), epoch) << id;
    EXPECT_EQ(caller.State(id), steady_.State(id)) << id;
  }
  // A session at rest in Redis, whose older state is on the disk as if that had not been erased there. The server ends.
  void LeaveAnOlderStateOnTheDisk(GdnServerOptions options) {
    TestServer server(std::move(options));
    const Caller caller(server);
    Start(caller, "r");
    ASSERT_TRUE(caller.Evict("r", v1::STATE_TIER_DISK).ok());
    fs::copy(SessionFolder("r"), folder_.path() + "/aside");
    EXPECT_EQ(Step(caller, "r", 20), Step(steady_, "r", 20));
    ASSERT_TRUE(caller.Evict("r", v1::STATE_TIER_REDIS).ok());
    EXPECT_FALSE(fs::exists(SessionFolder("r")));
    Start(caller, "d");
    ASSERT_TRUE(caller.Evict("d", v1::STATE_TIER_DISK).ok());
    ASSERT_TRUE(server.Drain());
    fs::copy(folder_.path() + "/aside", SessionFolder("r"));
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
  const std::vector<std::string> ids_ = SessionIds(4);
  RedisServer redis_{{.append_only = true}};
  TestServer steady_server_;
  const Caller steady_{steady_server_};
};

TEST_F(AbsentTier, AFullDiskLosesNothingAtTheEndWhileRedisTakesStates) {
  GdnServerOptions options = Both();
  options.states.disk.limit_bytes = 1;
  {
    TestServer server(options);
    const Caller caller(server);
    for (const std::string& id : ids_) Start(caller, id);
    EXPECT_TRUE(caller.Checkpoint(ids_[0]).ok());
    EXPECT_TRUE(caller.Checkpoint(ids_[0], "named").ok());
    EXPECT_EQ(Step(caller, ids_[0], 20), Step(steady_, ids_[0], 20));
    EXPECT_TRUE(server.Drain());
  }
  TestServer server(options);
  const Caller caller(server);
  for (const std::string& id : ids_) ExpectAsSteady(caller, id, 1);
  ASSERT_TRUE(caller.Restore(ids_[0], "named").ok());
  EXPECT_EQ(Step(caller, ids_[0], 20), feed_.DecodeAll(steady_, ids_[1], {20, 1})) << "which are fed alike";
}

TEST_F(AbsentTier, ADiskThatFailsLosesNothingAtTheEndWhileRedisTakesStates) {
  {
    TestServer server(Both());
    const Caller caller(server);
    for (const std::string& id : ids_) Start(caller, id);
    ASSERT_TRUE(caller.Checkpoint(ids_[0]).ok());  // on the disk, with its base
    EXPECT_EQ(Step(caller, ids_[0], 20), Step(steady_, ids_[0], 20));
    fs::rename(Disk() + "/sessions", folder_.path() + "/sessions");
    std::ofstream(Disk() + "/sessions") << "x";  // root fails, too
    EXPECT_TRUE(server.Drain());
    fs::remove(Disk() + "/sessions");
    fs::rename(folder_.path() + "/sessions", Disk() + "/sessions");
  }
  EXPECT_TRUE(fs::exists(SessionFolder(ids_[0]))) << "an older state";
  TestServer server(Both());
  const Caller caller(server);
  for (const std::string& id : ids_) ExpectAsSteady(caller, id, 1);
}

TEST_F(AbsentTier, ADiskAboveItsWatermarkPassesCheckpointsOnToRedis) {
  GdnServerOptions options = Both();
  options.states.disk.watermarks = {.high_percent = 90, .low_percent = 80, .space = [](const std::string&) {
                                      return DiskSpace{.used_bytes = 95, .total_bytes = 100};
                                    }};
  TestServer server(options);
  const Caller caller(server);
  Start(caller, "a");
  ASSERT_TRUE(caller.Checkpoint("a").ok());
  EXPECT_EQ(TierNamed(caller, "redis").sessions(), 1);
  EXPECT_EQ(caller.Get("a").reply.layers(0).durable_token_count(), 3);
}

TEST_F(AbsentTier, ASessionWaitsForTheTierThatHasItsNewestState) {
  LeaveAnOlderStateOnTheDisk(Both());
  redis_.Kill();
  TestServer server(Both());
  const Caller caller(server);
  ExpectAsSteady(caller, "d", 1);
  EXPECT_TRUE(RefusedAs(caller.Get("r"), "TIER_UNAVAILABLE", {{"tier", "redis"}}));
  EXPECT_TRUE(RefusedAs(caller.Decode(feed_.Decode({"r"}, TokenRange{21, 1})), "TIER_UNAVAILABLE"));
  EXPECT_TRUE(RefusedAs(feed_.Create(caller, "r"), "TIER_UNAVAILABLE")) << "nor is its name given to another";
  redis_.Start();
  ASSERT_TRUE(WaitUntil([&] { return caller.Get("r").ok(); }, "the session to come back from Redis"));
  ExpectAsSteady(caller, "r", 1);
  ASSERT_TRUE(caller.Delete("r").ok());
  EXPECT_FALSE(fs::exists(SessionFolder("r"))) << "the older state goes with it";
}

TEST_F(AbsentTier, ASessionIsRefusedByAServerWithoutTheTierAndGoesOnWithIt) {
  LeaveAnOlderStateOnTheDisk(Both());
  {
    TestServer server({.states = {.disk = {.directory = Disk()}}});
    const Caller caller(server);
    EXPECT_TRUE(RefusedAs(caller.Get("r"), "TIER_UNAVAILABLE", {{"tier", "redis"}}));
    EXPECT_TRUE(RefusedAs(caller.Get("unknown"), "SESSION_NOT_FOUND"));
    EXPECT_EQ(Step(caller, "d", 20), Step(steady_, "d", 20));
    EXPECT_TRUE(server.Drain());
  }
  TestServer server(Both());
  const Caller caller(server);
  for (const std::string id : {"r", "d"}) ExpectAsSteady(caller, id, 1);
}

TEST_F(AbsentTier, ARedisThatAnotherServerHadMeanwhileVouchesForNothing) {
  LeaveAnOlderStateOnTheDisk(Both());
  {
    TestServer other({.states = {.redis = {.endpoint = redis_.endpoint()}}});
    const Caller caller(other);
    Step(caller, "r", 21);
    EXPECT_TRUE(other.Drain());
  }
  Step(steady_, "r", 21);
  TestServer server(Both());
  const Caller caller(server);
  EXPECT_GT(caller.Get("r").reply.epoch(), 1);
  EXPECT_EQ(caller.State("r"), steady_.State("r"));
}

// A checkpoint in Redis of a session that is on the disk: a Redis that comes later brings it, and it ends with it.
TEST_F(AbsentTier, ACheckpointInATierThatComesLaterIsItsSessions) {
  std::atomic<bool> above = false;  // the disk's thread reads it
  GdnServerOptions options = Both();
  options.states.disk.watermarks = {.high_percent = 90, .low_percent = 80, .space = [&above](const std::string&) {
                                      return DiskSpace{.used_bytes = int64_t{above.load() ? 95 : 5} << 30,
                                                       .total_bytes = int64_t{100} << 30};
                                    }};
  {
    TestServer server(options);
    const Caller caller(server);
    Start(caller, "a");
    ASSERT_TRUE(caller.Checkpoint("a").ok());
    above = true;
    ASSERT_TRUE(caller.Checkpoint("a", "named").ok());
    ASSERT_EQ(redis_.Command({"HEXISTS", "gdn:{/a}", "checkpoint:named"}), "1");
  }
  redis_.Kill();
  TestServer server(options);
  const Caller caller(server);
  ASSERT_TRUE(caller.Get("a").ok());
  redis_.Start();
  const auto listed = [&] { return caller.Checkpoints("a").reply.checkpoints_size() == 1; };
  ASSERT_TRUE(WaitUntil(listed, "Redis to be taken in"));
  ASSERT_TRUE(caller.Delete("a").ok());
  EXPECT_EQ(redis_.Command({"HEXISTS", "gdn:{/a}", "checkpoint:named"}), "0");
}

}  // namespace
}  // namespace gdn::absent_tier_test
