// Leases of clients at servers that share sessions: a sign of life reaches one server and counts at all, and sessions
// end wherever they are, on no server too.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/tcp_proxy.h"

namespace gdn::fleet_leases_test {
namespace {

class FleetLeasesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    redis_.Start();
  }
  std::unique_ptr<TestServer> Start(const std::string& name) const { return Start(name, redis_.endpoint()); }
  static std::unique_ptr<TestServer> Start(const std::string& name, const std::string& redis) {
    return std::make_unique<TestServer>(
        GdnServerOptions{.states = {.redis = {.endpoint = redis, .share_sessions = true, .node_name = name}},
                         .fleet = {.lease = absl::Seconds(2), .notice = absl::ZeroDuration()}});
  }
  static absl::StatusOr<v1::Lease> Open(const TestServer& server, const std::string& id, int64_t seconds) {
    v1::OpenLeaseRequest request;
    request.set_lease_id(id);
    request.mutable_grace()->set_seconds(seconds);
    return Client::Connect(server.address())->OpenLease(request);
  }
  static absl::Status Renew(const TestServer& server, const std::string& id) {
    return Client::Connect(server.address())->RenewLease("leases/" + id).status();
  }
  Outcome<v1::Session> Make(const Caller& caller, const std::string& id, const std::string& lease) const {
    v1::CreateSessionRequest request = feed_.Creation(id);
    request.set_lease("leases/" + lease);
    return caller.Create(request);
  }
  static int64_t Count(const Caller& caller) { return caller.Info().reply.session_count(); }
  // The sessions that Redis knows, with or without a server.
  std::string InRedis() const { return redis_.Command({"KEYS", "*{*}"}); }

  const TokenFeed feed_ = TokenFeed::Operator();
  RedisServer redis_{{.tcp = true}};
};

TEST_F(FleetLeasesTest, ALeaseIsKnownAtEveryServerAndItsEndReachesAll) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a), at_b(*b);
  ASSERT_TRUE(Open(*a, "engine", 3600).ok());
  ASSERT_REPLY(const auto there, Make(at_b, "on-b", "engine"));
  EXPECT_EQ(there.lease(), "leases/engine");
  ASSERT_TRUE(Make(at_a, "on-a", "engine").ok());
  EXPECT_TRUE(RefusedAs(Make(at_b, "s", "nobody"), "LEASE_NOT_FOUND"));
  EXPECT_TRUE(Renew(*b, "engine").ok());
  const absl::Status other = Open(*b, "engine", 60).status();
  EXPECT_TRUE(absl::IsAlreadyExists(other)) << other;
  EXPECT_TRUE(absl::IsNotFound(Renew(*b, "nobody")));
  // The session moves, and its lease goes along.
  ASSERT_REPLY(const auto moved, SentAgain([&] { return at_a.Get("on-b"); }));
  EXPECT_EQ(moved.lease(), "leases/engine");
  ASSERT_TRUE(SentAgain([&] { return at_b.Get("on-b"); }).ok());
  ASSERT_TRUE(at_b.Prefill(feed_.Prefill("on-b", {0, 3})).ok());
  ASSERT_TRUE(at_b.Checkpoint("on-b").ok());

  GDN_ASSERT_OK_AND_ASSIGN(const int64_t ended, Client::Connect(a->address())->EndLease("leases/engine"));
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(Count(at_a), 0);
  EXPECT_TRUE(WaitUntil([&] { return Count(at_b) == 0; }, "the other server to learn of the end"));
  EXPECT_TRUE(absl::IsNotFound(Renew(*b, "engine")));
  EXPECT_TRUE(WaitUntil([&] { return InRedis().empty(); }, "the states in Redis to be erased"));
}

TEST_F(FleetLeasesTest, SessionsOfAllServersEndAfterTheLastSignOfLife) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a), at_b(*b);
  ASSERT_TRUE(Open(*a, "engine", 1).ok());
  const bool made = Make(at_a, "on-a", "engine").ok() && Make(at_b, "on-b", "engine").ok();
  ASSERT_TRUE(made || absl::IsNotFound(Renew(*a, "engine"))) << "on a slow machine it has ended by now";
  EXPECT_TRUE(WaitUntil([&] { return Count(at_a) + Count(at_b) == 0; }, "the sessions to end"));
  EXPECT_TRUE(absl::IsNotFound(Renew(*a, "engine")));
  EXPECT_TRUE(absl::IsNotFound(Renew(*b, "engine")));
  EXPECT_TRUE(WaitUntil([&] { return redis_.Command({"ZCARD", "gdn:leases"}) == "0"; }, "the entry to go"));
}

TEST_F(FleetLeasesTest, ARenewalAtOneServerKeepsTheSessionsOfAnother) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_b(*b);
  // A machine may stop this test for longer than the grace. Such a try says nothing, and the next one counts.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const std::string id = "l" + std::to_string(attempt);
    absl::Time last = absl::Now();
    ASSERT_TRUE(Open(*a, id, 2).ok());
    const bool made = Make(at_b, "s" + id, id).ok();
    absl::Duration longest;
    for (const absl::Time begin = absl::Now(); absl::Now() - begin < absl::Seconds(5);) {
      const absl::Time sent = absl::Now();
      Renew(*a, id).IgnoreError();
      longest = std::max(longest, absl::Now() - last);
      last = sent;
      absl::SleepFor(absl::Milliseconds(50));
    }
    const auto lives = at_b.Get("s" + id);
    longest = std::max(longest, absl::Now() - last);
    if (longest >= absl::Seconds(2)) continue;
    EXPECT_TRUE(made && lives.ok()) << lives.reason() << "; the longest time between two signs of life was " << longest;
    return;
  }
  GTEST_SKIP() << "this machine was never fast enough";
}

TEST_F(FleetLeasesTest, SessionsOfAKilledServerEndThoughNobodyCallsThem) {
  auto a = Start("a");
  const auto b = Start("b");
  ASSERT_TRUE(Open(*a, "engine", 3).ok());
  const auto on_a = std::make_unique<Caller>(*a);
  const bool made = Make(*on_a, "on-a", "engine").ok() && on_a->Prefill(feed_.Prefill("on-a", {0, 3})).ok() &&
                    on_a->Checkpoint("on-a").ok();
  ASSERT_TRUE(feed_.Create(*on_a, "free").ok());
  ASSERT_TRUE(on_a->Prefill(feed_.Prefill("free", {0, 3})).ok() && on_a->Checkpoint("free").ok());
  a.reset();  // as killed
  if (made) {
    EXPECT_NE(InRedis().find("on-a"), std::string::npos);
  }
  EXPECT_TRUE(WaitUntil([&] { return InRedis().find("on-a") == std::string::npos; }, "the session to end"));
  EXPECT_TRUE(WaitUntil([&] { return Count(Caller(*b)) == 0; }, "the session to end here too"));
  EXPECT_NE(InRedis().find("free"), std::string::npos) << "others stay where they are";
  EXPECT_TRUE(Caller(*b).Get("free").ok());
}

TEST_F(FleetLeasesTest, ARedisThatForgetsASignOfLifeEndsNothing) {
  const auto a = Start("a");
  const Caller at_a(*a);
  ASSERT_TRUE(Open(*a, "engine", 3600).ok());
  ASSERT_TRUE(Make(at_a, "s", "engine").ok());
  const auto end = [&] { return redis_.Command({"ZSCORE", "gdn:leases", "/engine"}); };
  const std::string before = end();
  ASSERT_GT(before.size(), 10u) << "milliseconds since 1970";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"ZADD", "gdn:leases", "1", "/engine"}, {"DEL", "gdn:leases", "gdn:lease-graces"}}) {
    redis_.Command(command);
    EXPECT_TRUE(WaitUntil([&] { return end().size() == before.size(); }, "the entry to come back"));
    EXPECT_EQ(Count(at_a), 1);
    redis_.Command(command);
    EXPECT_TRUE(Renew(*a, "engine").ok());
    EXPECT_EQ(end().size(), before.size());
  }
  EXPECT_EQ(redis_.Command({"HGET", "gdn:lease-graces", "/engine"}), "3600000");
  GDN_ASSERT_OK_AND_ASSIGN(const int64_t ended, Client::Connect(a->address())->EndLease("leases/engine"));
  EXPECT_EQ(ended, 1);
  EXPECT_TRUE(absl::IsNotFound(Renew(*a, "engine"))) << "the client's word counts, not the time that was left";
}

TEST_F(FleetLeasesTest, NothingEndsWhileRedisDoesNotAnswer) {
  const auto a = Start("a");
  const Caller at_a(*a);
  for (int attempt = 0; attempt < 20; ++attempt) {
    const absl::Time opened = absl::Now();
    const std::string id = "l" + std::to_string(attempt);
    ASSERT_TRUE(Open(*a, id, 3).ok());
    const bool made = Make(at_a, "s" + id, id).ok();
    redis_.Stop();
    const bool in_time = made && Count(at_a) == 1 && absl::Now() - opened < absl::Seconds(3);
    if (in_time) {
      while (absl::Now() - opened < absl::Seconds(5)) absl::SleepFor(absl::Milliseconds(50));
      EXPECT_EQ(Count(at_a), 1) << "another server may have had a sign of life";
      const absl::Status renewed = Renew(*a, id);
      EXPECT_TRUE(absl::IsUnavailable(renewed)) << renewed;
    }
    redis_.Continue();
    EXPECT_TRUE(WaitUntil([&] { return Count(at_a) == 0; }, "the session to end"));
    if (in_time) return;
  }
  GTEST_SKIP() << "this machine was never fast enough";
}

TEST_F(FleetLeasesTest, SignsOfLifeCountWhileRedisDoesNotAnswer) {
  constexpr int kNowhere = 1;  // a port that refuses connections
  constexpr absl::Duration kGrace = absl::Seconds(3), kOutage = absl::Seconds(5);
  TcpProxy proxy(redis_.port());
  const auto a = Start("a", "127.0.0.1:" + std::to_string(proxy.port()));
  const Caller at_a(*a);
  for (int attempt = 0; attempt < 20; ++attempt) {
    const std::string id = "l" + std::to_string(attempt);
    absl::Time last = absl::Now();  // before the last sign of life
    bool in_time = Open(*a, id, absl::ToInt64Seconds(kGrace)).ok() && Make(at_a, "s" + id, id).ok();
    const absl::Time stopped = absl::Now();
    proxy.LeadTo(kNowhere);  // so that Redis gets no renewal late
    proxy.CloseConnections();
    while (in_time && absl::Now() - stopped < kOutage) {
      const absl::Time now = absl::Now();
      EXPECT_TRUE(absl::IsUnavailable(Renew(*a, id)));
      in_time = absl::Now() - last < kGrace;
      last = now;
      absl::SleepFor(absl::Milliseconds(100));
    }
    proxy.LeadTo(redis_.port());
    absl::SleepFor(absl::Milliseconds(1500));  // until the leases have been compared with Redis
    const bool lives = Count(at_a) == 1;
    in_time = in_time && absl::Now() - last < kGrace;
    if (in_time) {
      EXPECT_TRUE(lives) << "the client was never silent for as long as the grace";
      return;
    }
    EXPECT_TRUE(WaitUntil([&] { return Count(at_a) == 0; }, "the session to end"));
  }
  GTEST_SKIP() << "this machine was never fast enough";
}

}  // namespace
}  // namespace gdn::fleet_leases_test
