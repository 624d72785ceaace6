// A Redis server that is not what it was: a failover to a replica that lagged, an emptied store, a second server on the
// prefix, a password, a partition. Nothing stale is ever served. Each case prints what it did; GDN_PARTITION_SECONDS
// makes the partition as long as one is.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/durable_session.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/tcp_proxy.h"

namespace gdn::stale_store_test {
namespace {

constexpr TokenRange kPrompt = {0, 7};

void Print(const std::string& line) { std::cout << "stale store: " << line << std::endl; }

template <typename Reply>
std::string Text(const Outcome<Reply>& outcome) {
  return outcome.ok() ? "OK" : outcome.reason() + ": " + outcome.status.error_message();
}

class StaleStore : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    redis_.Start();
    proxy_.LeadTo(redis_.port());
    for (const std::string& id : ids_) feed_.Start(steady_, id, kPrompt, 2);
  }
  // With room for one session on the device: a step of one is a store of another.
  GdnServerOptions Options(int redis_port) const {
    const int64_t bytes = steady_.CreateOperator("probe", SmallOperator(1)).reply.state_bytes();
    return {.memory = {.device_state_bytes = bytes * 3 / 2},
            .states = {.redis = {.endpoint = "127.0.0.1:" + std::to_string(redis_port)}}};
  }
  GdnServerOptions Options() const { return Options(proxy_.port()); }
  // "a" and "b" as on the steady server; "b" is on the device, "a" in Redis.
  void Fill(const Caller& caller) {
    for (const std::string& id : ids_) feed_.Start(caller, id, kPrompt, 2);
  }
  std::string Decode(const Caller& caller, const std::string& id, int64_t first, int64_t count) {
    return feed_.DecodeAll(caller, id, {first, count});
  }
  Outcome<v1::DecodeResponse> Step(const Caller& caller, const std::string& id) {
    return caller.Decode(feed_.Decode({id}, TokenRange{50, 1}));
  }
  // Creates "a" as Fill does, as a DurableSession.
  std::unique_ptr<DurableSession> StartDurable(Client& client) {
    auto session = DurableSession::Create(client, feed_.Creation("a"), {.first_backoff = absl::Milliseconds(1)});
    EXPECT_TRUE(session.ok() && (*session)->Prefill(feed_.Prefill("a", kPrompt)).ok());
    for (const int64_t token : {kPrompt.count, kPrompt.count + 1}) {
      EXPECT_TRUE(session.ok() && (*session)->Decode(feed_.Decode({"a"}, TokenRange{token, 1})).ok());
    }
    return session.ok() ? *std::move(session) : nullptr;
  }
  // `replica` has all of what redis_ has, and from now on nothing more.
  void LeaveBehind(RedisServer& replica) {
    replica.Start();
    replica.Command({"REPLICAOF", "127.0.0.1", std::to_string(redis_.port())});
    const auto in_step = [&] {
      return replica.Command({"INFO", "replication"}).find("master_link_status:up") != std::string::npos &&
             redis_.Command({"WAIT", "1", "100"}) == "1";
    };
    ASSERT_TRUE(WaitUntil(in_step, "the replica to have it all"));
    replica.Command({"REPLICAOF", "NO", "ONE"});
  }
  void FailOverTo(RedisServer& replica) {
    redis_.Kill();
    proxy_.LeadTo(replica.port());
    proxy_.CloseConnections();
  }

  const std::vector<std::string> ids_ = {"a", "b"};
  const TokenFeed feed_ = TokenFeed::Operator(1);
  RedisServer redis_{{.tcp = true, .arguments = {"--repl-diskless-sync-delay", "0"}}};
  TcpProxy proxy_{0};
  TestServer steady_server_;
  const Caller steady_{steady_server_};
};

TEST_F(StaleStore, AFailoverToAReplicaThatLaggedIsDataLossUntilTheSessionIsRestored) {
  TestServer server(Options());
  const Caller caller(server);
  Fill(caller);
  const std::string then = steady_.State("a");
  RedisServer replica({.tcp = true});
  LeaveBehind(replica);
  Decode(caller, "a", 20, 3);  // comes back, moves on
  Decode(caller, "b", 20, 1);  // and is stored again, which the replica does not hear of
  FailOverTo(replica);

  const auto refused = Step(caller, "a");
  Print("failover to an older replica: a step: " + Text(refused));
  EXPECT_TRUE(RefusedAs(refused, "STATE_ROLLED_BACK", {{"tier", "redis"}}));
  EXPECT_NE(refused.status.error_message().find("RestoreCheckpoint"), std::string::npos);
  EXPECT_FALSE(caller.Export("a").ok());
  EXPECT_FALSE(caller.Checkpoint("a").ok()) << "nor is it stored again as if it were new";
  ASSERT_REPLY(const auto restored, caller.Restore("a"));
  Print("RestoreCheckpoint: epoch " + std::to_string(restored.epoch()) + ", " +
        std::to_string(restored.layers(0).token_count()) + " tokens");
  EXPECT_GT(restored.epoch(), 1);
  EXPECT_EQ(restored.layers(0).token_count(), kPrompt.count + 2);
  v1::DecodeRequest old = feed_.Decode({"a"}, TokenRange{23, 1});
  old.add_session_epochs(1);
  EXPECT_TRUE(RefusedAs(caller.Decode(old), "EPOCH_MISMATCH"));
  EXPECT_EQ(caller.State("a"), then);
  EXPECT_EQ(Decode(caller, "a", 20, 3), Decode(steady_, "a", 20, 3)) << "replayed";
  Decode(steady_, "b", 20, 1);
  for (const std::string& id : ids_) EXPECT_EQ(caller.State(id), steady_.State(id)) << id;
}

TEST_F(StaleStore, ADurableSessionGoesOnFromWhatTheReplicaHas) {
  TestServer server(Options());
  const Caller caller(server);
  Client client(server.channel());
  const auto session = StartDurable(client);
  ASSERT_NE(session, nullptr);
  feed_.Start(caller, "b", kPrompt, 2);
  RedisServer replica({.tcp = true});
  LeaveBehind(replica);
  ASSERT_TRUE(session->Decode(feed_.Decode({"a"}, TokenRange{20, 1})).ok());
  Decode(caller, "b", 20, 1);  // stores "a" again
  FailOverTo(replica);

  GDN_ASSERT_OK_AND_ASSIGN(const auto reply, session->Decode(feed_.Decode({"a"}, TokenRange{21, 1})));
  Decode(steady_, "a", 20, 1);
  EXPECT_EQ(reply.output().data(), Decode(steady_, "a", 21, 1));
  EXPECT_EQ(session->stats().recoveries, 1);
  EXPECT_EQ(session->stats().replayed_steps, 1);
  EXPECT_EQ(session->stats().recreations, 0);
  EXPECT_EQ(caller.State("a"), steady_.State("a"));
  Print("failover to an older replica: a DurableSession goes on from what is there, with the same bits");
}

TEST_F(StaleStore, ADurableSessionIsMadeAnewWhereTheStoreWasEmptied) {
  TestServer server(Options());
  const Caller caller(server);
  Client client(server.channel());
  const auto session = StartDurable(client);
  ASSERT_NE(session, nullptr);
  feed_.Start(caller, "b", kPrompt, 2);  // moves "a" to Redis
  redis_.Command({"FLUSHALL"});
  GDN_ASSERT_OK_AND_ASSIGN(const auto reply, session->Decode(feed_.Decode({"a"}, TokenRange{20, 1})));
  EXPECT_EQ(reply.output().data(), Decode(steady_, "a", 20, 1));
  EXPECT_EQ(session->stats().recreations, 1);
  EXPECT_EQ(caller.State("a"), steady_.State("a"));
  Print("FLUSHALL: a DurableSession is made anew, with the same bits");
}

TEST_F(StaleStore, ASecondServerOnThePrefixTakesItAndTheFirstStopsServingWhatIsThere) {
  TestServer first_server(Options());
  const Caller first(first_server);
  Fill(first);
  ASSERT_TRUE(first.Checkpoint("b").ok());
  TestServer second_server(Options());
  const Caller second(second_server);
  for (const std::string& id : ids_) EXPECT_EQ(second.State(id), steady_.State(id)) << id;

  const auto parked = Step(first, "a");
  Print("two servers on one prefix: the first, of a session in Redis: " + Text(parked));
  EXPECT_TRUE(RefusedAs(parked, "STATES_TAKEN_OVER"));
  Outcome<v1::DecodeResponse> resident;
  const auto stopped = [&] {
    resident = Step(first, "b");
    return !resident.ok();
  };
  ASSERT_TRUE(WaitUntil(stopped, "the first server to stop serving what the second has"));
  Print("two servers on one prefix: the first, of a session on its device: " + Text(resident));
  EXPECT_TRUE(RefusedAs(resident, "STATES_TAKEN_OVER"));
  EXPECT_TRUE(RefusedAs(first.Checkpoint("b"), "STATES_TAKEN_OVER"));
  EXPECT_TRUE(RefusedAs(first.Restore("b"), "STATES_TAKEN_OVER"));
  EXPECT_TRUE(RefusedAs(first.Export("b"), "STATES_TAKEN_OVER"));
  EXPECT_TRUE(first.Delete("a").ok()) << "here";
  for (const std::string& id : ids_) {
    EXPECT_EQ(Decode(second, id, 20, 3), Decode(steady_, id, 20, 3)) << id;
    EXPECT_EQ(second.State(id), steady_.State(id)) << id << ": nothing was written over, or erased";
  }
  ASSERT_TRUE(first.Delete("b").ok());
  feed_.Start(first, "mine", kPrompt, 1);
  EXPECT_TRUE(Step(first, "mine").ok()) << "what the other server has never seen goes on";
}

TEST_F(StaleStore, AnEmptiedStoreIsDataLossForWhatWasThereAndTheOthersGoOn) {
  TestServer server(Options());
  const Caller caller(server);
  Fill(caller);
  ASSERT_TRUE(caller.Checkpoint("b").ok());
  const auto durable = [&] { return caller.Get("b").reply.layers(0).durable_token_count(); };
  EXPECT_EQ(durable(), kPrompt.count + 2);
  redis_.Command({"FLUSHALL"});
  EXPECT_TRUE(WaitUntil([&] { return durable() == 0; }, "the server to count on the store no more"));
  const auto refused = Step(caller, "a");
  Print("FLUSHALL: a session that was there: " + Text(refused));
  EXPECT_TRUE(RefusedAs(refused, "STATE_ROLLED_BACK", {{"tier", "redis"}}));
  EXPECT_TRUE(RefusedAs(caller.Restore("a"), "CHECKPOINT_NOT_FOUND"));
  EXPECT_EQ(Decode(caller, "b", 20, 3), Decode(steady_, "b", 20, 3));
  ASSERT_TRUE(caller.Delete("a").ok());
  feed_.Start(caller, "a", kPrompt, 2);  // moves "b" to the emptied store
  EXPECT_EQ(caller.State("a"), steady_.State("a"));
  EXPECT_EQ(caller.State("b"), steady_.State("b"));
  Print("FLUSHALL: the others go on, and are stored again");
}

TEST_F(StaleStore, ASecondServerAfterARollbackIsNotTakenForAnEarlierOne) {
  // Both get the same incarnation: the number goes back with the rest.
  RedisServer replica({.tcp = true});
  LeaveBehind(replica);
  TestServer first_server(Options());
  const Caller first(first_server);
  Fill(first);
  const std::string number = redis_.Command({"GET", "gdn:incarnation"});
  // The second starts before the first can notice the failover by itself and take the prefix again.
  TestServer second_server(Options(replica.port()));
  const Caller second(second_server);
  FailOverTo(replica);
  EXPECT_EQ(replica.Command({"GET", "gdn:incarnation"}), number);
  feed_.Start(second, "a", kPrompt, 4);
  feed_.Start(second, "c", kPrompt, 4);  // "a" is in Redis
  const auto refused = Step(first, "a");
  Print("a second server of the same incarnation: the first: " + Text(refused));
  EXPECT_TRUE(RefusedAs(refused, "STATES_TAKEN_OVER"));
  Decode(steady_, "a", kPrompt.count + 2, 2);
  EXPECT_EQ(second.State("a"), steady_.State("a"));
}

TEST_F(StaleStore, APasswordThatIsRefusedIsUnavailableAndNothingElse) {
  TestServer server(Options());
  const Caller caller(server);
  Fill(caller);
  redis_.Command({"CONFIG", "SET", "requirepass", "new"});
  proxy_.CloseConnections();
  const auto refused = Step(caller, "a");
  Print("AUTH failure: a session in Redis: " + Text(refused));
  EXPECT_TRUE(RefusedAs(refused, "TIER_UNAVAILABLE"));
  EXPECT_EQ(Decode(caller, "b", 20, 3), Decode(steady_, "b", 20, 3));
  redis_.CommandAs("new", {"CONFIG", "SET", "requirepass", ""});
  ASSERT_TRUE(WaitUntil([&] { return caller.Export("a").ok(); }, "the password"));
  for (const std::string& id : ids_) EXPECT_EQ(caller.State(id), steady_.State(id)) << id;
  Print("AUTH failure: over, everything is there");
}

TEST_F(StaleStore, APartitionHidesNoSecondServer) {
  const char* seconds = std::getenv("GDN_PARTITION_SECONDS");
  TestServer first_server(Options());
  const Caller first(first_server);
  Fill(first);
  proxy_.CutOff(true);
  const auto cut = std::chrono::steady_clock::now();
  const auto refused = Step(first, "a");
  Print("partition: a session in Redis: " + Text(refused));
  EXPECT_TRUE(RefusedAs(refused, "TIER_UNAVAILABLE"));
  EXPECT_EQ(Decode(first, "b", 20, 1), Decode(steady_, "b", 20, 1)) << "on the device";
  {
    GdnServerOptions beyond = Options();
    beyond.states.redis.endpoint = redis_.endpoint();
    TestServer second_server(beyond);
    const Caller second(second_server);
    EXPECT_EQ(second.State("a"), steady_.State("a"));
    EXPECT_EQ(Decode(second, "a", 20, 2), Decode(steady_, "a", 20, 2));
    ASSERT_TRUE(second.Checkpoint("a").ok());
    if (seconds != nullptr) std::this_thread::sleep_until(cut + std::chrono::seconds(std::atoi(seconds)));
    proxy_.CutOff(false);
    Outcome<v1::DecodeResponse> after;
    const auto lost = [&] {
      after = Step(first, "a");
      return after.reason() == "STATES_TAKEN_OVER";
    };
    EXPECT_TRUE(WaitUntil(lost, "the first server to hear of the second"));
    Print("partition: over; the first server: " + Text(after));
    EXPECT_EQ(second.State("a"), steady_.State("a"));
  }
}

}  // namespace
}  // namespace gdn::stale_store_test
