// CreateSessions, DeleteSessions, ForkSessions and ResetSessions: each entry is answered by itself, and a session that
// was reset is as a new one.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/files/safetensors.h"
#include "client/cpp/client.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn::many_sessions_test {
namespace {

using Stub = v1::GdnService::Stub;

constexpr TokenRange kPrompt = {0, 7};
constexpr int64_t kHostBytes = int64_t{1} << 24;

std::string ReasonOf(const google::rpc::Status& error) { return ErrorInfoOf(error).reason(); }

v1::DeleteSessionsRequest DeletionOf(const std::vector<std::string>& ids) {
  v1::DeleteSessionsRequest request;
  for (const std::string& id : ids) request.add_names("sessions/" + id);
  return request;
}

v1::ResetSessionsRequest ResetOf(const std::vector<std::string>& ids, std::optional<int64_t> epoch = std::nullopt) {
  v1::ResetSessionsRequest request;
  for (const std::string& id : ids) {
    v1::SessionReset* const reset = request.add_resets();
    reset->set_name("sessions/" + id);
    if (epoch.has_value()) reset->set_session_epoch(*epoch);
  }
  return request;
}

// Resets the sessions, and fails the test if one cannot be reset.
void Reset(const Caller& caller, const std::vector<std::string>& ids) {
  ASSERT_REPLY(const auto reply, Call(caller, &Stub::ResetSessions, ResetOf(ids)));
  ASSERT_EQ(reply.results_size(), static_cast<int>(ids.size()));
  for (int i = 0; i < reply.results_size(); ++i) {
    ASSERT_TRUE(reply.results(i).has_session())
        << ids[static_cast<size_t>(i)] << ": " << reply.results(i).error().message();
    EXPECT_EQ(reply.results(i).session().name(), "sessions/" + ids[static_cast<size_t>(i)]);
    for (const v1::LayerState& layer : reply.results(i).session().layers()) {
      EXPECT_EQ(layer.token_count(), 0);
      EXPECT_EQ(layer.draft_length(), 0);
      EXPECT_EQ(layer.durable_token_count(), 0);
      EXPECT_EQ(layer.input_kind(), v1::INPUT_KIND_UNSPECIFIED);
    }
  }
}
// The reason for which one session is not reset.
std::string ResetRefusal(const Caller& caller, const std::string& id, std::optional<int64_t> epoch = std::nullopt) {
  const auto reply = Call(caller, &Stub::ResetSessions, ResetOf({id}, epoch));
  EXPECT_TRUE(reply.ok()) << reply.status.error_message();
  return reply.reply.results_size() == 1 ? ReasonOf(reply.reply.results(0).error()) : "(no result)";
}

class ManySessionsACall : public ::testing::Test {
 protected:
  static GdnServerOptions Options() { return {.models = TokenFeed::Models()}; }
  GdnServerOptions HostAndDisk() const {
    GdnServerOptions options = Options();
    options.memory.host_state_bytes = kHostBytes;
    options.states.disk.directory = folder_.path();
    return options;
  }
  // A session with the history that a reset must not leave a trace of, in every layer.
  void Use(const Caller& caller, const TokenFeed& feed, const std::string& id, int64_t decoded) {
    feed.Start(caller, id, {60, 5}, decoded);
    for (int layer = 0; layer < 2; ++layer) feed.DecodeAll(caller, id, {90, 3}, layer);
  }
  // Steps both sessions alike, by prefills and over a fold of the log: they give the same bytes.
  void ExpectTheSameBits(const Caller& caller, const TokenFeed& feed, const std::string& id, const std::string& fresh) {
    EXPECT_EQ(caller.State(id), caller.State(fresh));
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_REPLY(const auto one, caller.Prefill(feed.Prefill(id, kPrompt, layer)));
      ASSERT_REPLY(const auto other, caller.Prefill(feed.Prefill(fresh, kPrompt, layer)));
      EXPECT_EQ(one.output().data(), other.output().data()) << "layer " << layer;
      EXPECT_EQ(feed.DecodeAll(caller, id, {20, 20}, layer), feed.DecodeAll(caller, fresh, {20, 20}, layer));
    }
    EXPECT_EQ(caller.State(id), caller.State(fresh));
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(2);
};

TEST_F(ManySessionsACall, EachCreationIsAnsweredByItself) {
  TestServer server(Options());
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "there").ok());
  v1::CreateSessionsRequest request;
  *request.add_requests() = feed_.Creation("a");
  *request.add_requests() = feed_.Creation("no id/");
  request.add_requests()->set_model("models/none");
  *request.add_requests() = TokenFeed::Model().Creation("there");
  *request.add_requests() = feed_.Creation("");
  *request.add_requests() = feed_.Creation("there");
  *request.add_requests() = TokenFeed::Model().Creation("b");
  request.mutable_requests(5)->clear_session_id();
  request.mutable_requests(5)->mutable_operator_()->set_key_dim(-1);
  ASSERT_REPLY(const auto reply, Call(caller, &Stub::CreateSessions, request));
  ASSERT_EQ(reply.results_size(), 7);
  EXPECT_EQ(reply.results(0).session().name(), "sessions/a");
  EXPECT_EQ(reply.results(0).session().layers_size(), 2);
  EXPECT_EQ(ReasonOf(reply.results(1).error()), "INVALID_NAME");
  EXPECT_EQ(reply.results(1).error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(reply.results(2).error()), "MODEL_NOT_FOUND");
  EXPECT_EQ(ReasonOf(reply.results(3).error()), "SESSION_EXISTS");
  const std::string unnamed = reply.results(4).session().name();
  EXPECT_EQ(unnamed.size(), std::string("sessions/").size() + 32) << "128 random bits";
  EXPECT_EQ(ReasonOf(reply.results(5).error()), "INVALID_SPEC");
  EXPECT_EQ(reply.results(6).session().model(), "models/next");
  EXPECT_EQ(caller.List(10).reply.sessions_size(), 4);
  EXPECT_NE(caller.Metrics().reply.text().find("gdn_errors_total{reason=\"MODEL_NOT_FOUND\"} 1"), std::string::npos);
}

TEST_F(ManySessionsACall, CreationsThatAreSentAgainFindTheirSessions) {
  TestServer server(Options());
  const Caller caller(server);
  v1::CreateSessionsRequest request;
  for (const std::string& id : SessionIds(3)) *request.add_requests() = feed_.Creation(id);
  ASSERT_TRUE(Call(caller, &Stub::CreateSessions, request).ok());
  ASSERT_TRUE(caller.Prefill(feed_.Prefill("s1", kPrompt)).ok());
  ASSERT_TRUE(caller.Delete("s2").ok());
  ASSERT_REPLY(const auto again, Call(caller, &Stub::CreateSessions, request));
  ASSERT_EQ(again.results_size(), 3);
  for (const int i : {0, 1, 2}) EXPECT_TRUE(again.results(i).has_session()) << i;
  EXPECT_EQ(again.results(1).session().layers(0).token_count(), kPrompt.count) << "as it is now";
  EXPECT_EQ(caller.List(10).reply.sessions_size(), 3);
}

TEST_F(ManySessionsACall, EachDeletionIsAnsweredByItself) {
  TestServer server(Options());
  const Caller caller(server), other(server, "Bearer other");
  for (const char* id : {"a", "b", "c"}) feed_.Start(caller, id, kPrompt);
  feed_.Start(other, "theirs", kPrompt);
  v1::DeleteSessionsRequest request = DeletionOf({"a", "none", "theirs", "b"});
  request.add_names("no name");
  ASSERT_REPLY(const auto reply, Call(caller, &Stub::DeleteSessions, request));
  ASSERT_EQ(reply.statuses_size(), 5);
  for (const int done : {0, 3}) EXPECT_EQ(reply.statuses(done).code(), 0);
  for (const int unknown : {1, 2}) EXPECT_EQ(ReasonOf(reply.statuses(unknown)), "SESSION_NOT_FOUND");
  EXPECT_EQ(ReasonOf(reply.statuses(4)), "INVALID_NAME");
  EXPECT_EQ(caller.List(10).reply.sessions_size(), 1);
  EXPECT_EQ(other.TokenCount("theirs", 0), kPrompt.count);
}

TEST_F(ManySessionsACall, ASessionWithARunningStepIsNotDeletedAndTheOthersAre) {
  TestServer server(Options());
  const Caller caller(server);
  for (const char* id : {"a", "b"}) feed_.Start(caller, id, kPrompt);
  EngineBlocker engine(server.batcher());
  auto step = std::async(std::launch::async, [&] { return caller.Decode(feed_.Decode({"a"}, TokenRange{7, 1})); });
  ASSERT_TRUE(WaitForQueuedSteps(server, 1));
  ASSERT_REPLY(const auto reply, Call(caller, &Stub::DeleteSessions, DeletionOf({"a", "b"})));
  EXPECT_EQ(ReasonOf(reply.statuses(0)), "SESSION_BUSY");
  EXPECT_EQ(reply.statuses(1).code(), 0);
  engine.Release();
  EXPECT_TRUE(step.get().ok());
}

TEST_F(ManySessionsACall, EachForkIsAnsweredByItself) {
  TestServer server(Options());
  const Caller caller(server);
  for (const char* id : {"a", "b"}) feed_.Start(caller, id, kPrompt, 2);
  v1::ForkSessionsRequest request;
  *request.add_requests() = ForkOf("a", {"a1", ""});
  *request.add_requests() = ForkOf("none", {"n1"});
  *request.add_requests() = ForkOf("b", {"b1", "a"});
  *request.add_requests() = ForkOf("b", {"b2"});
  request.mutable_requests(3)->set_session_epoch(9);
  *request.add_requests() = ForkOf("a", {"a2"});
  *request.add_requests() = ForkOf("b", {});
  ASSERT_REPLY(const auto reply, Call(caller, &Stub::ForkSessions, request));
  ASSERT_EQ(reply.results_size(), 6);
  ASSERT_EQ(reply.results(0).sessions_size(), 2);
  EXPECT_FALSE(reply.results(0).has_error());
  EXPECT_EQ(reply.results(0).sessions(0).name(), "sessions/a1");
  EXPECT_EQ(reply.results(0).sessions(1).layers(0).token_count(), kPrompt.count + 2);
  EXPECT_EQ(ReasonOf(reply.results(1).error()), "SESSION_NOT_FOUND");
  EXPECT_EQ(ReasonOf(reply.results(2).error()), "SESSION_EXISTS");
  EXPECT_EQ(ReasonOf(reply.results(3).error()), "EPOCH_MISMATCH");
  EXPECT_EQ(reply.results(4).sessions(0).name(), "sessions/a2");
  EXPECT_EQ(ReasonOf(reply.results(5).error()), "INVALID_SPEC");
  for (const char* none : {"b1", "b2", "n1"}) EXPECT_EQ(caller.Get(none).reason(), "SESSION_NOT_FOUND") << none;
  for (const char* child : {"a1", "a2"}) EXPECT_EQ(caller.State(child), caller.State("a"));
  feed_.DecodeAll(caller, "a1", {20, 1});
  v1::ForkSessionsRequest again;
  *again.add_requests() = ForkOf("a", {"a2"});
  ASSERT_REPLY(const auto found, Call(caller, &Stub::ForkSessions, again));
  EXPECT_EQ(found.results(0).sessions(0).name(), "sessions/a2");
  EXPECT_EQ(caller.List(20).reply.sessions_size(), 5);
}

TEST_F(ManySessionsACall, CallsOfTooManyEntriesOrOfOneSessionTwiceAreRefusedWhole) {
  GdnServerOptions options = Options();
  options.limits.max_batch = 3;
  TestServer server(options);
  const Caller caller(server);
  for (const char* id : {"a", "b"}) feed_.Start(caller, id, kPrompt);
  const auto creation_of = [&](const std::vector<std::string>& ids) {
    v1::CreateSessionsRequest request;
    for (const std::string& id : ids) *request.add_requests() = feed_.Creation(id);
    return Call(caller, &Stub::CreateSessions, request).status;
  };
  const auto forks_of = [&](const std::vector<std::vector<std::string>>& children) {
    v1::ForkSessionsRequest request;
    for (const auto& ids : children) *request.add_requests() = ForkOf("a", ids);
    return Call(caller, &Stub::ForkSessions, request).status;
  };
  const auto deletion_of = [&](const std::vector<std::string>& ids) {
    return Call(caller, &Stub::DeleteSessions, DeletionOf(ids)).status;
  };
  const auto reset_of = [&](const std::vector<std::string>& ids) {
    return Call(caller, &Stub::ResetSessions, ResetOf(ids)).status;
  };
  const auto everything = [&] {
    return caller.State("a") + caller.State("b") + std::to_string(caller.Info().reply.session_count());
  };
  ExpectRefused(
      {
          {"no creation", "BATCH_TOO_LARGE", "", [&] { return creation_of({}); }},
          {"creations", "BATCH_TOO_LARGE", "",
           [&] {
             return creation_of({"", "", "", ""});
           }},
          {"one id", "DUPLICATE_SESSION", "",
           [&] {
             return creation_of({"x", "y", "x"});
           }},
          {"no fork", "BATCH_TOO_LARGE", "", [&] { return forks_of({}); }},
          {"forks", "BATCH_TOO_LARGE", "",
           [&] {
             return forks_of({{"1"}, {"2"}, {"3"}, {"4"}});
           }},
          {"children", "BATCH_TOO_LARGE", "",
           [&] {
             return forks_of({{"1", "2"}, {"3", "4"}});
           }},
          {"one child", "DUPLICATE_SESSION", "",
           [&] {
             return forks_of({{"1", "2"}, {"1"}});
           }},
          {"no deletion", "BATCH_TOO_LARGE", "", [&] { return deletion_of({}); }},
          {"deletions", "BATCH_TOO_LARGE", "",
           [&] {
             return deletion_of({"a", "b", "c", "d"});
           }},
          {"deleted twice", "DUPLICATE_SESSION", "",
           [&] {
             return deletion_of({"a", "b", "a"});
           }},
          {"no reset", "BATCH_TOO_LARGE", "", [&] { return reset_of({}); }},
          {"resets", "BATCH_TOO_LARGE", "",
           [&] {
             return reset_of({"a", "b", "c", "d"});
           }},
          {"reset twice", "DUPLICATE_SESSION", "",
           [&] {
             return reset_of({"b", "a", "b"});
           }},
      },
      everything);
  EXPECT_TRUE(creation_of({"", "", ""}).ok()) << "ids that the server chooses are not the same";
}

TEST_F(ManySessionsACall, TheMemoryOfTheRepliesIsTakenBeforeAnythingIsMade) {
  GdnServerOptions options = Options();
  options.memory.call_bytes = 1 << 20;
  options.limits.max_message_bytes = 1 << 18;
  TestServer server(options);
  const Caller caller(server);
  v1::CreateSessionsRequest request;
  for (int i = 0; i < 512; ++i) *request.add_requests() = feed_.Creation("");
  EXPECT_TRUE(RefusedAs(Call(caller, &Stub::CreateSessions, request), "BYTES_EXHAUSTED", {{"pool", "call"}}));
  EXPECT_EQ(caller.Info().reply.session_count(), 0);
  request.mutable_requests()->DeleteSubrange(0, 490);
  EXPECT_TRUE(Call(caller, &Stub::CreateSessions, request).ok());
}

TEST_F(ManySessionsACall, CreationsThatAreCancelledLeaveNoSessionWithoutAKnownId) {
  const int64_t bytes = [&] {
    TestServer probe;
    return feed_.Create(Caller(probe), "probe").reply.state_bytes();
  }();
  GdnServerOptions options = Options();
  options.memory = {.device_state_bytes = bytes, .host_state_bytes = 8 * bytes};
  TestServer server(options);
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "busy").ok());
  {
    EngineBlocker blocker(server.batcher());
    auto step = std::async(std::launch::async, [&] { return caller.Decode(feed_.Decode({"busy"}, TokenRange{0, 1})); });
    ASSERT_TRUE(WaitForQueuedSteps(server, 1));
    // They wait for room, which there is once the step has ended.
    const auto context = caller.NewContext();
    v1::CreateSessionsRequest request;
    for (const char* id : {"", ""}) *request.add_requests() = feed_.Creation(id);
    auto creation = std::async(std::launch::async, [&] {
      v1::CreateSessionsResponse response;
      return server.stub().CreateSessions(context.get(), request, &response);
    });
    ASSERT_TRUE(WaitUntil([&] { return caller.Info().reply.session_count() == 3; }, "the creations to begin"));
    CancelAndSettle(caller, *context);
    EXPECT_EQ(creation.get().error_code(), grpc::StatusCode::CANCELLED);
    blocker.Release();
    EXPECT_TRUE(step.get().ok());
  }
  EXPECT_TRUE(WaitUntil([&] { return caller.Info().reply.session_count() == 1; }, "what nobody knows of to end"));
  EXPECT_TRUE(feed_.Create(caller, "next").ok());
}

TEST_F(ManySessionsACall, AResetSessionHasTheBitsOfANewOne) {
  TestServer server(Options());
  const Caller caller(server);
  for (const TokenFeed& feed : {TokenFeed::Operator(2), TokenFeed::Model()}) {
    for (const int64_t decoded : {0, 9, 13}) {  // before a fold, and after it
      SCOPED_TRACE(feed.name() + " " + std::to_string(decoded));
      const std::string id = feed.name() + std::to_string(decoded), fresh = id + "fresh";
      Use(caller, feed, id, decoded);
      ASSERT_TRUE(caller.Decode(feed.Draft({id}, {{100, 4}})).ok());
      const int64_t used = caller.Info().reply.state_bytes_used();
      Reset(caller, {id});
      EXPECT_EQ(caller.Info().reply.state_bytes_used(), used) << "it keeps its slots";
      ASSERT_TRUE(feed.Create(caller, fresh).ok());
      ExpectTheSameBits(caller, feed, id, fresh);
      Reset(caller, {id, fresh});
      Reset(caller, {id});
      ExpectTheSameBits(caller, feed, id, fresh);
      ASSERT_TRUE(Call(caller, &Stub::DeleteSessions, DeletionOf({id, fresh})).ok());
    }
  }
  EXPECT_EQ(caller.Info().reply.state_bytes_used(), 0);
}

TEST_F(ManySessionsACall, AResetSessionTakesAnotherKindOfInput) {
  TestServer server(Options());
  const Caller caller(server);
  const TokenFeed model = TokenFeed::Model();
  model.Start(caller, "a", kPrompt);
  v1::PrefillRequest projected;
  projected.set_session("sessions/a");
  *projected.mutable_projected() = RandomProjected({4}, /*seed=*/1);
  EXPECT_TRUE(RefusedAs(caller.Prefill(projected), "INPUT_KIND_MISMATCH"));
  Reset(caller, {"a"});
  EXPECT_TRUE(caller.Prefill(projected).ok());
}

TEST_F(ManySessionsACall, ResetsAndForksLeaveEachOtherAlone) {
  TestServer server(Options());
  const Caller caller(server);
  for (const TokenFeed& feed : {TokenFeed::Operator(2), TokenFeed::Model()}) {
    for (const bool stepped : {false, true}) {  // a side that has stepped has a slot of its own and shares the base
      for (const std::string reset : {"parent", "child"}) {
        SCOPED_TRACE(feed.name() + " " + reset + (stepped ? " stepped" : ""));
        const std::string kept = reset == "parent" ? "child" : "parent";
        Use(caller, feed, "parent", 4);
        Use(caller, feed, "steady", 4);
        ASSERT_TRUE(caller.Fork("parent", {"child"}).ok());
        if (stepped) feed.DecodeAll(caller, reset, {150, 2});
        ASSERT_TRUE(caller.Decode(feed.Draft({reset}, {{100, 3}})).ok());
        Reset(caller, {reset});
        EXPECT_EQ(caller.State(kept), caller.State("steady"));
        ASSERT_TRUE(feed.Create(caller, "fresh").ok());
        ExpectTheSameBits(caller, feed, reset, "fresh");
        EXPECT_EQ(feed.DecodeAll(caller, kept, {200, 20}), feed.DecodeAll(caller, "steady", {200, 20}));
        EXPECT_EQ(caller.State(kept), caller.State("steady"));
        ASSERT_TRUE(caller.Fork(reset, {"again"}).ok()) << "and it can be forked again";
        ASSERT_TRUE(
            Call(caller, &Stub::DeleteSessions, DeletionOf({"parent", "child", "steady", "fresh", "again"})).ok());
        EXPECT_EQ(caller.Info().reply.state_bytes_used(), 0);
      }
    }
  }
}

TEST_F(ManySessionsACall, AfterAResetOldCountsAreRefusedAndNoOldReplyIsSent) {
  TestServer server(Options());
  const Caller caller(server);
  feed_.Start(caller, "a", kPrompt);
  feed_.Start(caller, "b", kPrompt);
  const v1::DecodeRequest step = WithId(feed_.Decode({"a"}, TokenRange{7, 1}), "step");
  const auto first = caller.Decode(step);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(caller.Decode(feed_.Draft({"a"}, {{8, 3}})).ok());
  const v1::AcceptTokensRequest accept = WithId(AcceptOf({"a"}, {2}), "accept");
  ASSERT_TRUE(caller.Accept(accept).ok());
  Reset(caller, {"a"});
  v1::DecodeRequest old = feed_.Decode({"a"}, TokenRange{10, 1});
  old.add_expected_token_counts(kPrompt.count + 3);
  EXPECT_TRUE(RefusedAs(caller.Decode(old), "TOKEN_COUNT_MISMATCH"));
  EXPECT_EQ(caller.TokenCount("a", 0), 0);
  EXPECT_EQ(caller.Get("a").reply.epoch(), 1);
  // The ids are free: the same step is computed, from a zero state.
  ASSERT_REPLY(const auto again, caller.Decode(step));
  EXPECT_NE(again.output().data(), first.reply.output().data());
  EXPECT_EQ(caller.TokenCount("a", 0), 1);
  ASSERT_TRUE(caller.Decode(feed_.Draft({"a"}, {{8, 3}})).ok());
  ASSERT_TRUE(caller.Accept(accept).ok());
  EXPECT_EQ(caller.TokenCount("a", 0), 3) << "it was accepted anew";
  EXPECT_EQ(caller.TokenCount("b", 0), kPrompt.count);
}

TEST_F(ManySessionsACall, EachResetIsAnsweredByItself) {
  TestServer server(Options());
  const Caller caller(server), other(server, "Bearer other");
  for (const char* id : {"a", "b", "lost"}) feed_.Start(caller, id, kPrompt);
  feed_.Start(other, "theirs", kPrompt);
  const auto lost = *server.server().states().sessions().Find(/*principal=*/"", "lost");
  EXPECT_FALSE(lost->LoseState(0, absl::InternalError("the test says so")).ok());
  v1::ResetSessionsRequest request = ResetOf({"a", "none", "theirs", "b", "lost"}, /*epoch=*/1);
  request.mutable_resets(3)->set_session_epoch(2);
  request.add_resets()->set_name("no name");
  ASSERT_REPLY(const auto reply, Call(caller, &Stub::ResetSessions, request));
  ASSERT_EQ(reply.results_size(), 6);
  EXPECT_EQ(reply.results(0).session().layers(0).token_count(), 0);
  for (const int unknown : {1, 2}) EXPECT_EQ(ReasonOf(reply.results(unknown).error()), "SESSION_NOT_FOUND");
  EXPECT_EQ(ReasonOf(reply.results(3).error()), "EPOCH_MISMATCH");
  EXPECT_EQ(ReasonOf(reply.results(4).error()), "STATE_LOST");
  EXPECT_EQ(ReasonOf(reply.results(5).error()), "INVALID_NAME");
  EXPECT_EQ(caller.TokenCount("a", 0), 0);
  EXPECT_EQ(caller.TokenCount("b", 0), kPrompt.count);
  EXPECT_EQ(other.TokenCount("theirs", 0), kPrompt.count);
  EXPECT_TRUE(RefusedAs(caller.Decode(feed_.Decode({"lost"}, TokenRange{7, 1})), "STATE_LOST")) << "it stays lost";
  EXPECT_TRUE(caller.Delete("lost").ok());
}

TEST_F(ManySessionsACall, ALostSessionIsResetOnceItIsRestored) {
  TestServer server(HostAndDisk());
  const Caller caller(server);
  feed_.Start(caller, "a", kPrompt);
  ASSERT_TRUE(caller.Checkpoint("a").ok());
  const auto lost = *server.server().states().sessions().Find(/*principal=*/"", "a");
  EXPECT_FALSE(lost->LoseState(0, absl::InternalError("the test says so")).ok());
  EXPECT_EQ(ResetRefusal(caller, "a"), "STATE_ROLLED_BACK");
  ASSERT_TRUE(caller.Restore("a").ok());
  EXPECT_EQ(ResetRefusal(caller, "a", /*epoch=*/1), "EPOCH_MISMATCH");
  Reset(caller, {"a"});
  EXPECT_EQ(caller.Get("a").reply.epoch(), 2);
}

TEST_F(ManySessionsACall, AResetWaitsForTheStepThatRunsUnlessItIsCancelled) {
  TestServer server(Options());
  const Caller caller(server);
  feed_.Start(caller, "a", kPrompt);
  const auto session = *server.server().states().sessions().Find(/*principal=*/"", "a");
  const auto waits = [&] {
    if (!session->gate().TryPin()) return true;
    session->gate().Unpin();
    return false;
  };
  for (const bool cancelled : {true, false}) {
    EngineBlocker engine(server.batcher());
    auto step = std::async(std::launch::async, [&] { return caller.Decode(feed_.Decode({"a"}, TokenRange{7, 1})); });
    ASSERT_TRUE(WaitForQueuedSteps(server, 1));
    const auto context = caller.NewContext();
    auto reset = std::async(std::launch::async, [&] {
      Outcome<v1::ResetSessionsResponse> outcome;
      outcome.status = server.stub().ResetSessions(context.get(), ResetOf({"a"}), &outcome.reply);
      return outcome;
    });
    ASSERT_TRUE(WaitUntil(waits, "the reset to wait for the step"));
    if (cancelled) CancelAndSettle(caller, *context);
    engine.Release();
    EXPECT_TRUE(step.get().ok());
    EXPECT_EQ(reset.get().status.error_code(), cancelled ? grpc::StatusCode::CANCELLED : grpc::StatusCode::OK);
    EXPECT_EQ(caller.TokenCount("a", 0), cancelled ? kPrompt.count + 1 : 0);
  }
}

TEST_F(ManySessionsACall, SessionsAreResetWhereTheyAreParked) {
  TestServer server(HostAndDisk());
  const Caller caller(server);
  for (const v1::StateTier tier : {v1::STATE_TIER_HOST, v1::STATE_TIER_DISK}) {
    for (const bool durable : {false, true}) {
      SCOPED_TRACE(v1::StateTier_Name(tier) + (durable ? " durable" : ""));
      Use(caller, feed_, "a", 3);
      if (durable) {
        ASSERT_TRUE(caller.Checkpoint("a").ok());
        feed_.DecodeAll(caller, "a", {120, 2});
      }
      ASSERT_TRUE(caller.Decode(feed_.Draft({"a"}, {{100, 3}})).ok());
      ASSERT_TRUE(caller.Evict("a", tier).ok());
      Reset(caller, {"a"});
      EXPECT_NE(caller.Get("a").reply.tier(), v1::STATE_TIER_DEVICE) << "nothing moves for it";
      ASSERT_TRUE(feed_.Create(caller, "fresh").ok());
      ExpectTheSameBits(caller, feed_, "a", "fresh");
      ASSERT_TRUE(Call(caller, &Stub::DeleteSessions, DeletionOf({"a", "fresh"})).ok());
    }
  }
}

TEST_F(ManySessionsACall, NoCrashBringsBackWhatAResetHasForgotten) {
  for (const v1::StateTier tier : {v1::STATE_TIER_DEVICE, v1::STATE_TIER_HOST, v1::STATE_TIER_DISK}) {
    SCOPED_TRACE(v1::StateTier_Name(tier));
    std::string fresh, named;
    {
      TestServer server(HostAndDisk());
      const Caller caller(server);
      ASSERT_TRUE(feed_.Create(caller, "a").ok());
      fresh = caller.State("a");
      Use(caller, feed_, "b", 3);
      ASSERT_TRUE(caller.Prefill(feed_.Prefill("a", kPrompt)).ok());
      ASSERT_TRUE(caller.Checkpoint("a", "named").ok());
      named = caller.State("a");
      feed_.DecodeAll(caller, "a", {20, 3});
      ASSERT_TRUE(caller.Checkpoint("a").ok());
      feed_.DecodeAll(caller, "a", {30, 2});
      if (tier != v1::STATE_TIER_DEVICE) {
        ASSERT_TRUE(caller.Evict("a", tier).ok());
      }
      Reset(caller, {"a", "b"});
      EXPECT_EQ(caller.Get("a").reply.epoch(), 1);
    }  // as if it were killed
    TestServer server(HostAndDisk());
    const Caller caller(server);
    EXPECT_EQ(caller.State("a"), fresh);
    const int64_t epoch = caller.Get("a").reply.epoch();
    EXPECT_GT(epoch, 1);
    EXPECT_EQ(ResetRefusal(caller, "a", /*epoch=*/1), "EPOCH_MISMATCH");
    EXPECT_EQ(caller.Get("b").reason(), "SESSION_NOT_FOUND") << "it was never durable";
    ASSERT_TRUE(caller.Restore("a", "named").ok());
    EXPECT_EQ(caller.State("a"), named) << "a named checkpoint stays";
    ASSERT_TRUE(caller.Delete("a").ok());
  }
}

TEST_F(ManySessionsACall, AResetThatCannotBeMadeDurableIsRefusedAndChangesNothing) {
  if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
  RedisServer redis({.append_only = true});
  redis.Start();
  GdnServerOptions options = Options();
  options.states.redis.endpoint = redis.endpoint();
  TestServer server(options);
  const Caller caller(server);
  for (const char* id : {"here", "parked"}) feed_.Start(caller, id, kPrompt);
  ASSERT_TRUE(caller.Checkpoint("here").ok());
  ASSERT_TRUE(caller.Evict("parked", v1::STATE_TIER_REDIS).ok());
  const std::string state = caller.State("here");
  redis.Kill();
  for (const char* id : {"here", "parked"}) {
    EXPECT_EQ(ResetRefusal(caller, id), "TIER_UNAVAILABLE");
    EXPECT_EQ(caller.TokenCount(id, 0), kPrompt.count);
  }
  EXPECT_EQ(caller.State("here"), state);
  feed_.DecodeAll(caller, "here", {20, 2});
  redis.Start();
  for (const char* id : {"here", "parked"}) {
    EXPECT_TRUE(WaitUntil([&] { return ResetRefusal(caller, id).empty(); }, "the reset"));
    EXPECT_EQ(caller.TokenCount(id, 0), 0);
    EXPECT_FALSE(feed_.DecodeAll(caller, id, {30, 2}).empty());
  }
}

TEST_F(ManySessionsACall, AnOrderlyEndKeepsAResetSessionAndItsEpoch) {
  std::string after;
  {
    TestServer server(HostAndDisk());
    const Caller caller(server);
    for (const char* id : {"a", "b"}) feed_.Start(caller, id, kPrompt);
    ASSERT_TRUE(caller.Checkpoint("a").ok());
    Reset(caller, {"a", "b"});
    ASSERT_TRUE(caller.Prefill(feed_.Prefill("b", {40, 3})).ok());
    after = caller.State("b");
    EXPECT_TRUE(server.Drain());
  }
  TestServer server(HostAndDisk());
  const Caller caller(server);
  EXPECT_EQ(caller.TokenCount("a", 0), 0);
  EXPECT_EQ(caller.State("b"), after);
  for (const char* id : {"a", "b"}) EXPECT_EQ(caller.Get(id).reply.epoch(), 1) << id;
}

TEST_F(ManySessionsACall, APolicyByTokensCountsFromTheReset) {
  GdnServerOptions options = HostAndDisk();
  options.states.policy.every_tokens = 8;
  TestServer server(options);
  const Caller caller(server);
  feed_.Start(caller, "a", {0, 40});
  const auto durable = [&] { return caller.Get("a").reply.layers(0).durable_token_count(); };
  ASSERT_TRUE(WaitUntil([&] { return durable() == 40; }, "a checkpoint"));
  Reset(caller, {"a"});
  feed_.DecodeAll(caller, "a", {50, 20});
  EXPECT_GE(durable(), 12) << "a step beyond 8 tokens waits for a checkpoint";
}

TEST_F(ManySessionsACall, AWatchSendsTheResetState) {
  TestServer server(Options());
  const Caller caller(server);
  feed_.Start(caller, "a", kPrompt);
  Client client(v1::GdnService::NewStub(server.channel()));
  v1::WatchStateRequest request;
  request.set_name("sessions/a");
  request.set_every_tokens(1000);
  StateWatch watch = client.WatchState(request).value();
  const auto full = watch.Next();
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_FALSE(SafetensorsFile::Parse(full->file)->entries().empty());
  Reset(caller, {"a"});
  const auto empty = watch.Next();
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_FALSE(empty->delta);
  EXPECT_TRUE(SafetensorsFile::Parse(empty->file)->entries().empty());
}

TEST_F(ManySessionsACall, FiveHundredAndTwelveAreMadeForkedResetAndDeletedInFourCalls) {
  constexpr int kMany = 512;
  TestServer server(Options());
  const Caller caller(server);
  const std::vector<std::string> ids = SessionIds(kMany);
  v1::CreateSessionsRequest create;
  v1::ForkSessionsRequest fork;
  for (const std::string& id : ids) {
    *create.add_requests() = feed_.Creation(id);
    *fork.add_requests() = ForkOf(id, {"child-" + id});
  }
  ASSERT_REPLY(const auto created, Call(caller, &Stub::CreateSessions, create));
  ASSERT_EQ(created.results_size(), kMany);
  for (int i = 0; i < kMany; ++i) {
    EXPECT_EQ(created.results(i).session().name(), "sessions/" + ids[static_cast<size_t>(i)]);
  }
  ASSERT_REPLY(const auto first, caller.Decode(feed_.Decode(ids, TokenRange{0, 1})));
  ASSERT_REPLY(const auto forked, Call(caller, &Stub::ForkSessions, fork));
  for (const v1::ForkResult& result : forked.results()) {
    ASSERT_EQ(result.sessions_size(), 1) << result.error().message();
    EXPECT_EQ(result.sessions(0).layers(0).token_count(), 1);
  }
  EXPECT_EQ(caller.Info().reply.session_count(), 2 * kMany);
  Reset(caller, ids);
  ASSERT_REPLY(const auto again, caller.Decode(feed_.Decode(ids, TokenRange{0, 1})));
  EXPECT_EQ(again.output().data(), first.output().data());
  EXPECT_EQ(caller.TokenCount("child-s511", 0), 1);
  ASSERT_REPLY(const auto deleted, Call(caller, &Stub::DeleteSessions, DeletionOf(ids)));
  for (const google::rpc::Status& status : deleted.statuses()) EXPECT_EQ(status.code(), 0);
  EXPECT_EQ(caller.Info().reply.session_count(), kMany);
}

}  // namespace
}  // namespace gdn::many_sessions_test
