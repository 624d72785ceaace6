// Servers that share sessions over one Redis: a session goes where it is called for, as it was; it is never two
// servers' at once; and what a server takes with it when it dies is replayed.
#include <gtest/gtest.h>

#include <grpcpp/create_channel.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "client/cpp/durable_session.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/state_store/tiers/redis_server_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/tcp_proxy.h"

namespace gdn::fleet_test {
namespace {

constexpr TokenRange kPrompt = {0, 20};
constexpr int64_t kDecoded = 12;

class FleetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    redis_.Start();
  }
  GdnServerOptions Options(const std::string& name) const {
    return {.models = TokenFeed::Models(),
            .states = {.redis = {.endpoint = redis_.endpoint(), .share_sessions = true, .node_name = name}},
            .fleet = {.lease = absl::Seconds(2), .notice = absl::ZeroDuration()}};
  }
  std::unique_ptr<TestServer> Start(const std::string& name) const {
    return std::make_unique<TestServer>(Options(name));
  }
  // Calls go to each of them in turn.
  static std::unique_ptr<Client> ClientOf(const std::vector<TestServer*>& servers) {
    std::string target = "ipv4:";
    for (const TestServer* server : servers) target += (target.back() == ':' ? "" : ",") + server->address();
    grpc::ChannelArguments arguments;
    arguments.SetLoadBalancingPolicyName("round_robin");
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return std::make_unique<Client>(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  }
  // Prompt and decodes of one session, over the client; what it answered, one behind the other.
  std::string Run(
      Client& client, const std::string& id, DurableSessionStats* stats = nullptr,
      const std::function<void(int64_t)>& before = [](int64_t) {}) const {
    auto session = DurableSession::Create(client, feed_.Creation(id), {.first_backoff = absl::Milliseconds(2)});
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return "";
    const auto prompt = (*session)->Prefill(feed_.Prefill(id, kPrompt));
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    if (!prompt.ok()) return "";
    std::string outputs = prompt->output().data();
    for (int64_t i = 0; i < kDecoded; ++i) {
      before(i);
      const auto reply = (*session)->Decode(feed_.Decode({id}, TokenRange{kPrompt.count + i, 1}));
      EXPECT_TRUE(reply.ok()) << i << ": " << reply.status();
      if (!reply.ok()) return "";
      outputs += reply->output().data();
    }
    if (stats != nullptr) *stats = (*session)->stats();
    return outputs;
  }
  std::string Undisturbed(const std::string& id) {
    const auto client = Client::Connect(steady_server_.address());
    return Run(*client, id);
  }
  static bool IsHere(const Caller& caller, const std::string& id) {
    const auto listed = caller.List(100);
    for (const v1::Session& session : listed.reply.sessions()) {
      if (session.name() == "sessions/" + id) return true;
    }
    return false;
  }

  const TokenFeed feed_ = TokenFeed::Model();
  RedisServer redis_{{.tcp = true}};
  TestServer steady_server_{{.models = TokenFeed::Models()}};
  const Caller steady_{steady_server_};
};

TEST_F(FleetTest, ASessionGoesWhereItIsCalledForAsItWas) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a);
  const Caller at_b(*b);
  for (const Caller* caller : {&steady_, &at_a}) feed_.Start(*caller, "s", kPrompt, 2);
  ASSERT_TRUE(at_a.Decode(WithId(feed_.Decode({"s"}, TokenRange{22, 1}), "step")).ok());
  ASSERT_REPLY(const auto before, at_a.Get("s"));
  const std::string state = at_a.State("s");

  ASSERT_REPLY(const auto after, at_b.Get("s"));
  EXPECT_EQ(after.epoch(), before.epoch());
  EXPECT_EQ(after.layers(0).token_count(), 23);
  EXPECT_FALSE(IsHere(at_a, "s"));
  EXPECT_EQ(at_b.State("s"), state);
  // The reply that was stored there is given here.
  ASSERT_REPLY(const auto again, at_b.Decode(WithId(feed_.Decode({"s"}, TokenRange{22, 1}), "step")));
  EXPECT_EQ(again.token_counts(0), 23);
  ASSERT_REPLY(const auto expected, steady_.Decode(feed_.Decode({"s"}, TokenRange{22, 1})));
  EXPECT_EQ(again.output().data(), expected.output().data());

  EXPECT_EQ(feed_.DecodeAll(at_a, "s", {23, 3}), feed_.DecodeAll(steady_, "s", {23, 3})) << "and back";
  EXPECT_FALSE(IsHere(at_b, "s"));
  EXPECT_EQ(at_a.State("s"), steady_.State("s"));
  EXPECT_EQ(b->server().fleet()->departures().handed_over(), 1);
  ASSERT_REPLY(const auto info, at_b.Info());
  EXPECT_EQ(info.fleet().node(), "b");
  EXPECT_EQ(info.fleet().lease_ms(), 2000);
  EXPECT_TRUE(info.fleet().lease_valid());
  EXPECT_EQ(info.fleet().sessions_taken_over(), 1);
  EXPECT_EQ(info.fleet().sessions_in_new_epoch(), 0);
  ASSERT_REPLY(const auto metrics, at_b.Metrics());
  EXPECT_NE(metrics.text().find("gdn_sessions_taken_over_total{epoch=\"same\"} 1\n"), std::string::npos);
  EXPECT_NE(metrics.text().find("gdn_valid_node_leases 1\n"), std::string::npos);
  EXPECT_EQ(b->server().fleet()->arrivals().replayed(), 0);
}

TEST_F(FleetTest, ASnapshotGoesWhereASessionStartsFromIt) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a);
  const Caller at_b(*b);
  for (const Caller* caller : {&steady_, &at_a}) feed_.Start(*caller, "s", kPrompt, 2);
  v1::SnapshotSessionRequest take;
  take.set_session("sessions/s");
  take.set_key("k");
  v1::SnapshotSessionResponse taken;
  ASSERT_TRUE(a->stub().SnapshotSession(at_a.NewContext().get(), take, &taken).ok());
  feed_.DecodeAll(at_a, "s", {90, 3});
  const auto begin = [](const Caller& caller, const std::string& id, const std::string& key) {
    v1::CreateSessionRequest request;
    request.set_session_id(id);
    request.set_snapshot(key);
    Outcome<v1::CreateSessionResponse> outcome;
    outcome.status = caller.server().stub().CreateSession(caller.NewContext().get(), request, &outcome.reply);
    return outcome;
  };
  const auto keys = [](const Caller& caller) {
    v1::ListSnapshotsResponse list;
    EXPECT_TRUE(
        caller.server().stub().ListSnapshots(caller.NewContext().get(), v1::ListSnapshotsRequest(), &list).ok());
    EXPECT_TRUE(list.lost().empty()) << "what has gone to another server is not lost";
    return list.snapshots_size();
  };
  const auto made = begin(at_b, "made", "k");
  ASSERT_TRUE(made.ok()) << made.status.error_message();
  EXPECT_EQ(at_b.State("made"), steady_.State("s"));
  EXPECT_EQ(feed_.DecodeAll(at_b, "made", {22, 20}), feed_.DecodeAll(steady_, "s", {22, 20}));
  EXPECT_EQ(keys(at_a), 0);
  EXPECT_EQ(keys(at_b), 1);
  EXPECT_TRUE(IsHere(at_a, "s")) << "its session stays";
  EXPECT_TRUE(RefusedAs(begin(at_b, "none", "unknown"), "SNAPSHOT_NOT_FOUND"));
  ASSERT_TRUE(a->stub().SnapshotSession(at_a.NewContext().get(), take, &taken).error_code() ==
              grpc::StatusCode::ALREADY_EXISTS)
      << "the session has moved on, and the key is known wherever it is";
  v1::DeleteSnapshotsRequest drop;
  drop.add_keys("k");
  v1::DeleteSnapshotsResponse dropped;
  ASSERT_TRUE(b->stub().DeleteSnapshots(at_b.NewContext().get(), drop, &dropped).ok());
  EXPECT_EQ(dropped.statuses(0).code(), 0) << dropped.statuses(0).message();
  EXPECT_TRUE(RefusedAs(begin(at_a, "late", "k"), "SNAPSHOT_NOT_FOUND"));
}

TEST_F(FleetTest, StepsInTurnsAtEveryServerGiveTheUndisturbedOutputs) {
  const auto a = Start("a");
  const auto b = Start("b");
  const auto c = Start("c");
  const std::vector<std::string> ids = SessionIds(3);
  std::vector<std::string> expected;
  for (const std::string& id : ids) expected.push_back(Undisturbed(id));
  const auto client = ClientOf({a.get(), b.get(), c.get()});
  std::vector<std::string> got(ids.size());
  std::vector<DurableSessionStats> stats(ids.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ids.size(); ++i) {
    threads.emplace_back([&, i] { got[i] = Run(*client, ids[i], &stats[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(got[i] == expected[i]) << ids[i];
    EXPECT_EQ(stats[i].recoveries, 0) << "nothing was lost on the way";
  }
  EXPECT_GT(a->server().fleet()->arrivals().taken_over() + b->server().fleet()->arrivals().taken_over(), 3);
}

TEST_F(FleetTest, OneCallBringsAllItsSessions) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a);
  const Caller at_b(*b);
  for (const char* const id : {"x", "y"}) {
    feed_.Start(steady_, id, kPrompt);
    feed_.Start(std::string(id) == "x" ? at_a : at_b, id, kPrompt);
  }
  v1::DecodeRequest step = feed_.Decode({"x", "y", "nobody"}, TokenRange{20, 1});
  step.set_partial_ok(true);
  ASSERT_REPLY(const auto reply, at_b.Decode(step));
  ASSERT_REPLY(const auto expected, steady_.Decode(feed_.Decode({"x", "y"}, TokenRange{20, 1})));
  for (const int row : {0, 1}) EXPECT_EQ(RowBytes(reply.output(), row), RowBytes(expected.output(), row));
  EXPECT_EQ(ErrorInfoOf(reply.row_statuses(2)).reason(), "SESSION_NOT_FOUND");

  // Back to the other server, with a draft.
  const std::vector<FeedPart> rows = {{.id = "x", .range = {21, 3}, .kind = v1::STEP_KIND_DRAFT},
                                      {.id = "y", .range = {21, 5}, .kind = v1::STEP_KIND_PREFILL}};
  std::vector<FeedPart> next = {{.id = "y", .range = {26, 1}}, {.id = "x", .range = {26, 2}}};
  next[1].accept = 2;
  ASSERT_REPLY(const auto mixed, SentAgain([&] { return at_a.Step(WithId(feed_.Step(rows), "step")); }));
  EXPECT_TRUE(IsHere(at_a, "x") && IsHere(at_a, "y"));
  ASSERT_REPLY(const auto undisturbed, steady_.Step(feed_.Step(rows)));
  EXPECT_EQ(mixed.output().data(), undisturbed.output().data());
  ASSERT_REPLY(const auto again, SentAgain([&] { return at_b.Step(WithId(feed_.Step(rows), "step")); }));
  EXPECT_EQ(again.output().data(), undisturbed.output().data()) << "the stored replies went along";
  ASSERT_REPLY(const auto accepted, SentAgain([&] { return at_a.Step(feed_.Step(next)); }));
  ASSERT_REPLY(const auto expected_next, steady_.Step(feed_.Step(next)));
  EXPECT_EQ(accepted.output().data(), expected_next.output().data());
  for (const char* const id : {"x", "y"}) EXPECT_EQ(at_a.State(id), steady_.State(id)) << id;
}

TEST_F(FleetTest, WhatAKilledServerHadIsTakenAtItsCheckpointAndReplayed) {
  const std::string expected = Undisturbed("s");
  auto a = Start("a");
  const auto b = Start("b");
  TcpProxy router(a->server().port());
  const auto client = Client::Connect("127.0.0.1:" + std::to_string(router.port()));
  DurableSessionStats stats;
  const std::string got = Run(*client, "s", &stats, [&](int64_t step) {
    if (step == 4) {
      ASSERT_TRUE(Caller(*a).Checkpoint("s").ok());
    }
    if (step != 8) return;
    a.reset();  // without a word to anybody
    router.LeadTo(b->server().port());
    router.CloseConnections();
  });
  EXPECT_TRUE(got == expected);
  EXPECT_EQ(stats.recoveries, 1);
  EXPECT_GT(stats.replayed_tokens, 0);
  EXPECT_EQ(stats.recreations, 0);
  EXPECT_EQ(b->server().fleet()->arrivals().replayed(), 1);
}

TEST_F(FleetTest, AServerWithoutALeaseServesNothingAndForksNothing) {
  TcpProxy proxy(redis_.port());
  GdnServerOptions options = Options("a");
  options.states.redis.endpoint = "127.0.0.1:" + std::to_string(proxy.port());
  TestServer a(options);
  const auto b = Start("b");
  const Caller at_a(a);
  const Caller at_b(*b);
  for (const Caller* caller : {&steady_, &at_a}) feed_.Start(*caller, "s", kPrompt, 1);
  ASSERT_TRUE(at_a.Checkpoint("s").ok());
  ASSERT_TRUE(feed_.DecodeAll(at_a, "s", {21, 2}) == feed_.DecodeAll(steady_, "s", {21, 2}));

  proxy.CutOff(true);
  v1::DecodeRequest step = feed_.Decode({"s"}, TokenRange{23, 1});
  ASSERT_TRUE(WaitUntil([&] { return at_a.Get("s").reason() == "NODE_LEASE_LAPSED"; }, "the lease to run out"));
  EXPECT_TRUE(RefusedAs(at_a.Decode(step), "NODE_LEASE_LAPSED"));
  EXPECT_TRUE(HasRetryInfo(at_a.Decode(step).status));
  EXPECT_TRUE(RefusedAs(at_a.Create(feed_.Creation("other")), "NODE_LEASE_LAPSED"));

  // The other one has it, at its checkpoint, in another epoch.
  ASSERT_REPLY(const auto taken, at_b.Get("s"));
  EXPECT_NE(taken.epoch(), 1);
  EXPECT_EQ(taken.layers(0).token_count(), 21);
  step.add_session_epochs(1);
  EXPECT_TRUE(RefusedAs(at_b.Decode(step), "EPOCH_MISMATCH", {{"token_count", "21"}}));
  feed_.DecodeAll(at_b, "s", {21, 3});
  feed_.DecodeAll(steady_, "s", {23, 1});

  proxy.CutOff(false);
  ASSERT_TRUE(WaitUntil([&] { return a.server().fleet()->lease().valid(); }, "the lease to come back"));
  EXPECT_EQ(a.server().fleet()->departures().lost(), 1);
  // Called again, it gets the session from the other one, with what happened there. What the other asked of it while it
  // was cut off may reach it only now, and then the session goes once more.
  ASSERT_REPLY(const auto next, SentAgain([&] { return at_a.Decode(feed_.Decode({"s"}, TokenRange{24, 1})); }));
  EXPECT_TRUE(next.output().data() == feed_.DecodeAll(steady_, "s", {24, 1}));
  EXPECT_EQ(at_a.State("s"), steady_.State("s"));
}

TEST_F(FleetTest, ADrainHandsSessionsOverWhileTheyAreUsed) {
  const std::string expected = Undisturbed("s");
  auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a);
  feed_.Start(at_a, "idle", kPrompt, 3);
  feed_.Start(steady_, "idle", kPrompt, 3);
  const auto client = ClientOf({a.get(), b.get()});
  DurableSessionStats stats;
  std::thread drain;
  const std::string got = Run(*client, "s", &stats, [&](int64_t step) {
    if (step == 5) drain = std::thread([&] { EXPECT_TRUE(a->Drain()); });
  });
  drain.join();
  EXPECT_TRUE(got == expected);
  EXPECT_EQ(stats.recoveries, 0) << "no step was lost, so none was replayed";
  a.reset();
  const Caller at_b(*b);
  ASSERT_REPLY(const auto idle, at_b.Get("idle"));
  EXPECT_EQ(idle.epoch(), 1);
  EXPECT_EQ(at_b.State("idle"), steady_.State("idle"));
  EXPECT_EQ(b->server().fleet()->arrivals().replayed(), 0);
}

TEST_F(FleetTest, ANameIsTakenOnceInAllServers) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a);
  const Caller at_b(*b);
  ASSERT_TRUE(at_a.Create(feed_.Creation("s")).ok());
  ASSERT_TRUE(at_b.Create(feed_.Creation("s")).ok()) << "the same request finds the session, and brings it";
  EXPECT_FALSE(IsHere(at_a, "s"));
  EXPECT_TRUE(RefusedAs(at_a.CreateOperator("s", SmallOperator(1)), "SESSION_EXISTS"));
  EXPECT_TRUE(RefusedAs(at_b.Get("never"), "SESSION_NOT_FOUND"));
  // Another principal's of the same name is another.
  const Caller stranger(*b, "Bearer other");
  EXPECT_TRUE(RefusedAs(stranger.Get("s"), "SESSION_NOT_FOUND"));
  EXPECT_TRUE(stranger.CreateOperator("s", SmallOperator(1)).ok());

  // Ended at one, it is ended everywhere, and its name is free.
  ASSERT_TRUE(at_b.Delete("s").ok());
  EXPECT_TRUE(RefusedAs(at_a.Get("s"), "SESSION_NOT_FOUND"));
  EXPECT_TRUE(at_a.CreateOperator("s", SmallOperator(1)).ok());
}

TEST_F(FleetTest, ForksImportsAndCheckpointsAreFoundElsewhere) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a);
  const Caller at_b(*b);
  for (const Caller* caller : {&steady_, &at_a}) {
    feed_.Start(*caller, "s", kPrompt, 2);
    if (caller == &at_a) {
      ASSERT_TRUE(caller->Checkpoint("s", "lunch").ok());
    }
  }
  const std::string at_lunch = at_a.State("s");
  feed_.DecodeAll(at_a, "s", {22, 2});
  ASSERT_TRUE(at_b.Fork("s", {"child", ""}).ok()) << "of a session that is elsewhere";
  EXPECT_EQ(at_a.State("child"), at_b.State("s")) << "from where it goes on, too";
  ASSERT_REPLY(const auto named, at_a.Checkpoints("s"));
  ASSERT_EQ(named.checkpoints_size(), 1);
  EXPECT_EQ(named.checkpoints(0).checkpoint_id(), "lunch");
  ASSERT_TRUE(at_b.Restore("s", "lunch").ok());
  EXPECT_EQ(at_b.State("s"), at_lunch);

  ASSERT_REPLY(const std::string file, at_a.Export("child"));
  EXPECT_TRUE(RefusedAs(at_b.Import("s", "next", file), "SESSION_EXISTS"));
  ASSERT_TRUE(at_a.Import("copy", "next", file).ok());
  EXPECT_EQ(at_b.State("copy"), at_b.State("child"));
  ASSERT_TRUE(at_a.Evict("copy").ok());
  EXPECT_EQ(at_a.State("copy"), at_a.State("child"));
}

TEST_F(FleetTest, ASessionThatDoesNotFitHereStaysWhereItIs) {
  const auto a = Start("a");
  GdnServerOptions options = Options("b");
  options.models = {};
  TestServer b(options);
  const Caller at_a(*a);
  feed_.Start(at_a, "s", kPrompt, 1);
  const std::string state = at_a.State("s");
  EXPECT_TRUE(RefusedAs(Caller(b).Get("s"), "STATE_MISMATCH", {{"field", "model"}}));
  ASSERT_REPLY(const auto back, at_a.Get("s"));
  EXPECT_EQ(back.epoch(), 1) << "and in order";
  EXPECT_EQ(at_a.State("s"), state);
}

TEST_F(FleetTest, ACallWaitsForASessionNoLongerThanItMay) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Caller at_a(*a);
  const Caller at_b(*b);
  feed_.Start(at_a, "s", kPrompt, 1);
  {
    // A step that does not end keeps it there.
    EngineBlocker engine(a->batcher());
    std::thread step([&] { EXPECT_TRUE(at_a.Decode(feed_.Decode({"s"}, TokenRange{21, 1})).ok()); });
    ASSERT_TRUE(WaitForCalls(*a, "s", /*layer=*/0, /*calls=*/1));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    EXPECT_EQ(at_b.Decode(context, feed_.Decode({"s"}, TokenRange{22, 1})).status.error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
    engine.Release();
    step.join();
  }
  EXPECT_TRUE(at_b.Decode(feed_.Decode({"s"}, TokenRange{22, 1})).ok());
}

}  // namespace
}  // namespace gdn::fleet_test
