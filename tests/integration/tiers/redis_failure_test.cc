// A Redis server that is killed while sessions move to and from it, and comes back.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn::redis_failure_test {
namespace {

constexpr int kSessions = 4;

class RedisFailure : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    redis_.Start();
  }
  // A server over redis that has room for `sessions` on the device.
  GdnServerOptions WithRoomFor(double sessions) const {
    const int64_t bytes = big_.CreateOperator("probe", SmallOperator(1)).reply.state_bytes();
    return {.memory = {.device_state_bytes = static_cast<int64_t>(sessions * static_cast<double>(bytes))},
            .states = {.redis = {.endpoint = redis_.endpoint()}}};
  }
  void CreateAll(const Caller& caller) {
    for (const std::string& id : ids_) feed_.Start(caller, id, {0, 3});
  }

  const std::vector<std::string> ids_ = SessionIds(kSessions);
  const TokenFeed feed_ = TokenFeed::Operator(1);
  RedisServer redis_{{.append_only = true}};
  TestServer big_server_;
  const Caller big_{big_server_};
};

TEST_F(RedisFailure, MidTransferGivesClearErrorsAndNoSessionStepsOnAPartialState) {
  TestServer server(WithRoomFor(1.5));  // one at a time: every step of another session is a store and a load
  const Caller caller(server);
  CreateAll(caller);
  CreateAll(big_);

  std::vector<int64_t> next(ids_.size(), 3);
  std::atomic<int64_t> steps{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> killed{false};
  std::thread killer([&] {  // while the main thread's calls are under way
    for (int round = 0; round < 3; ++round) {
      const int64_t seen = steps;
      while (!stop && steps < seen + 17) std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (stop) return;
      redis_.Kill();
      killed = true;
      while (!stop && killed) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  const auto end_killer = absl::MakeCleanup([&] {
    stop = true;
    if (killer.joinable()) killer.join();
  });
  int64_t refused = 0;
  for (int round = 0; round < 40; ++round) {
    for (size_t i = 0; i < ids_.size(); ++i) {
      const TokenRange token = {next[i], 1};
      v1::DecodeRequest request = feed_.Decode({ids_[i]}, token);
      request.add_expected_token_counts(next[i]);
      request.set_request_id(ids_[i] + "." + std::to_string(next[i]));
      bool done = false;
      while (!done) {
        const auto reply = caller.Decode(request);
        ++steps;
        done = reply.ok();
        if (done) {
          ASSERT_EQ(reply.reply.output().data(), feed_.DecodeAll(big_, ids_[i], token)) << ids_[i];
          continue;
        }
        ASSERT_EQ(reply.status.error_code(), grpc::StatusCode::UNAVAILABLE) << reply.status.error_message();
        ASSERT_EQ(reply.reason(), "TIER_UNAVAILABLE") << reply.status.error_message();
        ASSERT_EQ(reply.metadata("tier"), "redis");
        ASSERT_TRUE(HasRetryInfo(reply.status));
        if (++refused % 5 == 0 && killed) {
          redis_.Start();
          killed = false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      ++next[i];
    }
  }
  stop = true;
  killer.join();
  EXPECT_GE(refused, 15) << "every kill was seen";
  EXPECT_GT(TierNamed(caller, "redis").failures(), 0);
  for (const std::string& id : ids_) EXPECT_EQ(caller.State(id), big_.State(id)) << id;
}

TEST_F(RedisFailure, LeavesSessionsOnTheDeviceAlone) {
  TestServer server(WithRoomFor(2.5));
  const Caller caller(server);
  CreateAll(caller);
  CreateAll(big_);
  redis_.Kill();
  for (const std::string id : {"s2", "s3"}) {  // the two that are on the device
    EXPECT_EQ(feed_.DecodeAll(caller, id, {20, 5}), feed_.DecodeAll(big_, id, {20, 5}));
  }
  EXPECT_TRUE(RefusedAs(caller.Decode(feed_.Decode({"s0"}, TokenRange{20, 1})), "TIER_UNAVAILABLE"));
  EXPECT_FALSE(feed_.Create(caller, "later").ok()) << "there is nowhere for another to go";
  EXPECT_EQ(caller.Get("s2").reply.tier(), v1::STATE_TIER_DEVICE);
  redis_.Start();
  const auto back = [&] { return caller.Decode(feed_.Decode({"s0"}, TokenRange{20, 1})).ok(); };
  EXPECT_TRUE(WaitUntil(back, "the session to come back from redis"));
  feed_.DecodeAll(big_, "s0", {20, 1});
  for (const std::string& id : ids_) EXPECT_EQ(caller.State(id), big_.State(id)) << id;
}

TEST_F(RedisFailure, AtTheStartLeavesWhatIsOnTheDiskAndIsTakenInWhenItComesBack) {
  const TempFolder folder;
  GdnServerOptions options = WithRoomFor(1.5);
  options.states.disk.directory = folder.path();
  {
    TestServer measured(options);
    const Caller caller(measured);
    feed_.Start(caller, "m", {0, 3});
    options.states.disk.limit_bytes = caller.Checkpoint("m").reply.written_bytes() * 3 / 2;  // of one session
    ASSERT_TRUE(caller.Delete("m").ok());
  }
  std::string on_disk, in_redis;
  {
    TestServer server(options);
    const Caller caller(server);
    for (const std::string id : {"s0", "s1", "s2"}) feed_.Start(caller, id, {0, 3});
    for (const std::string id : {"s0", "s1"}) {
      (caller.Get(id).reply.tier() == v1::STATE_TIER_DISK ? on_disk : in_redis) = id;
    }
    ASSERT_EQ(caller.Get(in_redis).reply.tier(), v1::STATE_TIER_REDIS);
  }
  CreateAll(big_);
  redis_.Kill();
  TestServer server(options);
  const Caller caller(server);
  EXPECT_EQ(feed_.DecodeAll(caller, on_disk, {20, 2}), feed_.DecodeAll(big_, on_disk, {20, 2}));
  const auto refused = caller.Decode(feed_.Decode({in_redis}, TokenRange{20, 1}));
  EXPECT_TRUE(RefusedAs(refused, "TIER_UNAVAILABLE", {{"tier", "redis"}}));
  EXPECT_TRUE(HasRetryInfo(refused.status));
  EXPECT_NE(TierNamed(caller, "redis").problem(), "");
  redis_.Start();
  const auto back = [&] { return caller.Get(in_redis).ok(); };
  ASSERT_TRUE(WaitUntil(back, "the session to come back from redis"));
  EXPECT_EQ(TierNamed(caller, "redis").problem(), "");
  for (const std::string id : {"s0", "s1"}) EXPECT_EQ(caller.State(id), big_.State(id)) << id;
  EXPECT_TRUE(RefusedAs(caller.Get("another"), "SESSION_NOT_FOUND"));
}

}  // namespace
}  // namespace gdn::redis_failure_test
