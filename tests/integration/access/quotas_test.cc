// Quotas of what there is: sessions, checkpoints, bytes, lifetimes. A refusal changes nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/temp_folder.h"

namespace gdn::quotas_test {
namespace {

class Quotas : public ::testing::Test {
 protected:
  static GdnServerOptions Each(Quota quota, int64_t limit) {
    GdnServerOptions options;
    options.quotas.each[quota] = limit;
    return options;
  }
  GdnServerOptions Durable(GdnServerOptions options) const {
    options.states.disk.directory = folder_.path();
    return options;
  }
  static v1::ImportStateRequest::Target Target(const std::string& id) {
    v1::ImportStateRequest::Target target;
    target.set_session_id(id);
    *target.mutable_operator_() = SmallOperator();
    return target;
  }
  static std::string Everything(const Caller& caller) {
    std::string all;
    const auto listed = caller.List(0);
    for (const v1::Session& session : listed.reply.sessions()) {
      all += session.name() + caller.State(session.name().substr(std::string("sessions/").size()));
    }
    return all;
  }
  static std::string QuotaOf(const Caller& caller, const std::string& name) {
    const auto info = caller.Info();
    for (const v1::QuotaInfo& quota : info.reply.quotas()) {
      if (quota.name() == name) return std::to_string(quota.used()) + "/" + std::to_string(quota.limit());
    }
    return "none";
  }

  const TokenFeed feed_ = TokenFeed::Operator();
  const TempFolder folder_;
};

TEST_F(Quotas, NoMoreSessionsAreMadeByWhateverCall) {
  TestServer server(Each(Quota::kSessions, 3));
  const Caller caller(server);
  feed_.Start(caller, "a", {0, 3});
  ASSERT_REPLY(const std::string file, caller.Export("a"));
  feed_.Start(caller, "b", {0, 3});
  const std::string before = Everything(caller);
  EXPECT_TRUE(RefusedAs(caller.Fork("a", {"f1", "f2"}), "QUOTA_EXCEEDED",
                        {{"quota", "sessions"}, {"of", "caller"}, {"used", "3"}, {"limit", "3"}}))
      << "one of the two would have found room";
  EXPECT_EQ(Everything(caller), before);
  EXPECT_EQ(QuotaOf(caller, "sessions"), "2/3");
  feed_.Start(caller, "c", {0, 3});
  const std::string full = Everything(caller);
  const auto refused = feed_.Create(caller, "d");
  EXPECT_TRUE(RefusedAs(refused, "QUOTA_EXCEEDED", {{"quota", "sessions"}}));
  EXPECT_FALSE(HasRetryInfo(refused.status)) << "waiting does not help";
  EXPECT_TRUE(RefusedAs(caller.Fork("a", {"f1"}), "QUOTA_EXCEEDED", {{"quota", "sessions"}}));
  EXPECT_TRUE(RefusedAs(caller.Import(Target("i"), file), "QUOTA_EXCEEDED", {{"quota", "sessions"}}));
  EXPECT_EQ(Everything(caller), full);
  EXPECT_TRUE(feed_.Create(caller, "c").ok()) << "it is there already";
  ASSERT_TRUE(caller.Delete("b").ok());
  EXPECT_TRUE(caller.Import(Target("i"), file).ok());
  EXPECT_EQ(server.server().ledger().refusals(Quota::kSessions), 4);
}

TEST_F(Quotas, AllCallersTogetherHaveAQuotaToo) {
  GdnServerOptions options;
  options.quotas.all[Quota::kSessions] = 2;
  TestServer server(std::move(options));
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "a").ok() && feed_.Create(caller, "b").ok());
  EXPECT_TRUE(RefusedAs(feed_.Create(caller, "c"), "QUOTA_EXCEEDED", {{"quota", "sessions"}, {"of", "all"}}));
}

TEST_F(Quotas, ALoweredQuotaTakesNoSessionAway) {
  TestServer server(Each(Quota::kSessions, 3));
  const Caller caller(server);
  for (const char* id : {"a", "b", "c"}) feed_.Start(caller, id, {0, 3});
  QuotaSettings quotas;
  quotas.each[Quota::kSessions] = 1;
  server.server().SetQuotas(quotas);
  for (const char* id : {"a", "b", "c"}) feed_.DecodeAll(caller, id, {3, 2});
  EXPECT_EQ(QuotaOf(caller, "sessions"), "3/1");
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(caller.Delete(id).ok());
    EXPECT_TRUE(RefusedAs(feed_.Create(caller, "d"), "QUOTA_EXCEEDED", {{"limit", "1"}}));
  }
  ASSERT_TRUE(caller.Delete("c").ok());
  EXPECT_TRUE(feed_.Create(caller, "d").ok());
}

TEST_F(Quotas, StatesOfAllPlacesTogetherAreBounded) {
  TestServer probe;
  const int64_t bytes = feed_.Create(Caller(probe), "p").reply.state_bytes();
  TestServer server(Each(Quota::kStateBytes, 2 * bytes));
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "a").ok() && feed_.Create(caller, "b").ok());
  EXPECT_TRUE(RefusedAs(feed_.Create(caller, "c"), "QUOTA_EXCEEDED",
                        {{"quota", "state-bytes"}, {"needed", std::to_string(bytes)}}));
  EXPECT_EQ(server.server().ledger().held(BytePool::kSessions), 2) << "what was counted first is given back";
}

TEST_F(Quotas, NamedCheckpointsAreCounted) {
  TestServer server(Durable(Each(Quota::kCheckpoints, 2)));
  const Caller caller(server);
  feed_.Start(caller, "a", {0, 3});
  feed_.Start(caller, "b", {0, 3});
  ASSERT_TRUE(caller.Checkpoint("a", "one").ok() && caller.Checkpoint("b", "one").ok());
  EXPECT_TRUE(RefusedAs(caller.Checkpoint("a", "two"), "QUOTA_EXCEEDED",
                        {{"quota", "checkpoints"}, {"used", "2"}, {"limit", "2"}}));
  EXPECT_EQ(caller.Checkpoints("a").reply.checkpoints_size(), 1);
  EXPECT_TRUE(caller.Checkpoint("a", "one").ok()) << "an id that is there is used again";
  EXPECT_TRUE(caller.Checkpoint("a").ok()) << "the newest has no name";
  EXPECT_TRUE(caller.Restore("a", "one").ok());
  ASSERT_TRUE(caller.DeleteCheckpoint("b", "one").ok());
  EXPECT_TRUE(caller.Checkpoint("a", "two").ok());
}

TEST_F(Quotas, ALongerLifeIsRefusedAndOneThatNobodyAskedForIsCut) {
  GdnServerOptions options = Each(Quota::kIdleTtl, absl::ToInt64Nanoseconds(absl::Minutes(30)));
  options.quotas.each[Quota::kMaxLifetime] = absl::ToInt64Nanoseconds(absl::Hours(2));
  TestServer server(std::move(options));
  const Caller caller(server);
  auto request = feed_.Creation("a");
  request.mutable_idle_ttl()->set_seconds(1801);
  EXPECT_TRUE(RefusedAs(caller.Create(request), "QUOTA_EXCEEDED", {{"quota", "idle-ttl"}, {"limit", "1800000000000"}}));
  request.mutable_idle_ttl()->set_seconds(60);
  request.mutable_max_lifetime()->set_seconds(7201);
  EXPECT_TRUE(RefusedAs(caller.Create(request), "QUOTA_EXCEEDED", {{"quota", "max-lifetime"}}));
  EXPECT_EQ(caller.List(0).reply.sessions_size(), 0);
  request.mutable_max_lifetime()->set_seconds(7200);
  ASSERT_REPLY(const v1::Session asked, caller.Create(request));
  EXPECT_EQ(asked.idle_ttl().seconds(), 60);
  EXPECT_EQ(asked.max_lifetime().seconds(), 7200);
  ASSERT_REPLY(const v1::Session silent, feed_.Create(caller, "b"));
  EXPECT_EQ(silent.idle_ttl().seconds(), 1800);
  EXPECT_EQ(silent.max_lifetime().seconds(), 7200);
  auto fork = ForkOf("b", {"f"});
  fork.mutable_idle_ttl()->set_seconds(3600);
  EXPECT_TRUE(RefusedAs(caller.Fork(fork), "QUOTA_EXCEEDED", {{"quota", "idle-ttl"}}));
  auto target = Target("i");
  target.mutable_max_lifetime()->set_seconds(7201);
  EXPECT_TRUE(RefusedAs(caller.Import(target, "never read"), "QUOTA_EXCEEDED", {{"quota", "max-lifetime"}}));
}

TEST_F(Quotas, BytesInFlightAreBoundedAndComeBack) {
  TestServer server(Each(Quota::kCallBytes, 128 << 10));
  const Caller caller(server);
  feed_.Start(caller, "a", {0, 3});
  const std::string before = caller.State("a");
  const auto refused = caller.Prefill(feed_.Prefill("a", {3, 300}));
  EXPECT_TRUE(RefusedAs(refused, "QUOTA_EXCEEDED", {{"quota", "call-bytes"}, {"limit", std::to_string(128 << 10)}}));
  const v1::StepRequest step =
      feed_.Step({{.id = "a", .range = {3, 1}}, {.id = "b", .range = {0, 300}, .kind = v1::STEP_KIND_PREFILL}});
  ASSERT_TRUE(feed_.Create(caller, "b").ok());
  EXPECT_TRUE(RefusedAs(caller.Step(step), "QUOTA_EXCEEDED", {{"quota", "call-bytes"}}));
  EXPECT_EQ(caller.State("a"), before);
  EXPECT_TRUE(caller.Step(feed_.Step({{.id = "b", .range = {0, 10}, .kind = v1::STEP_KIND_PREFILL}})).ok());
  EXPECT_TRUE(caller.Prefill(feed_.Prefill("a", {3, 10})).ok());
  EXPECT_TRUE(WaitUntil([&] { return server.server().ledger().held(BytePool::kCalls) == 0; }, "calls to end"));
}

TEST_F(Quotas, CopiesOnTheirWayAreBounded) {
  TestServer server(Each(Quota::kCopyBytes, 100));
  const Caller caller(server);
  feed_.Start(caller, "a", {0, 3});
  EXPECT_TRUE(RefusedAs(caller.Export("a"), "QUOTA_EXCEEDED", {{"quota", "copy-bytes"}}));
}

TEST_F(Quotas, ACallerSeesItsOwn) {
  TestServer server(Each(Quota::kSessions, 5));
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "a").ok());
  EXPECT_EQ(QuotaOf(caller, "sessions"), "1/5");
  EXPECT_EQ(QuotaOf(caller, "disk-bytes"), "none");
}

}  // namespace
}  // namespace gdn::quotas_test
