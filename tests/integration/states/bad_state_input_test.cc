// Bad input to the calls that do other things with a session's states than step them: the code, the reason, and that
// nothing has changed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::bad_state_input_test {
namespace {

constexpr int kMaxBatch = 4;

class BadStateInput : public ::testing::Test {
 protected:
  static GdnServerOptions Options(const std::string& folder) {
    return {
        .models = TokenFeed::Models(), .states = {.disk = {.directory = folder}}, .limits = {.max_batch = kMaxBatch}};
  }

  // "a": a checkpoint, then steps. "b": a draft of 3 in layer 0.
  void SetUp() override {
    for (const char* id : {"a", "b"}) feed_.Start(caller_, id, {0, 5});
    ASSERT_TRUE(caller_.Checkpoint("a").ok());
    feed_.DecodeAll(caller_, "a", {5, 2});
    ASSERT_TRUE(caller_.Decode(feed_.Draft({"b"}, {TokenRange{5, 3}})).ok());
  }

  std::string Everything() const {
    const v1::GetServerInfoResponse info = caller_.Info().reply;
    return caller_.State("a") + caller_.State("b") + std::to_string(info.session_count()) + " " +
           std::to_string(info.state_bytes_used()) + " " + std::to_string(caller_.Get("a").reply.epoch()) + " " +
           std::to_string(info.checkpoints());
  }

  // For each kind of request: one that is good (a watch still needs its policy), and its call.
  void MakeGood(v1::ForkSessionRequest& request) const { request = ForkOf("a", {"child"}); }
  grpc::Status Call(const v1::ForkSessionRequest& request) const { return caller_.Fork(request).status; }
  void MakeGood(v1::AcceptTokensRequest& request) const { request = AcceptOf({"b"}, {1}); }
  grpc::Status Call(const v1::AcceptTokensRequest& request) const { return caller_.Accept(request).status; }
  void MakeGood(v1::WatchStateRequest& request) const { request.set_name("sessions/a"); }
  grpc::Status Call(const v1::WatchStateRequest& request) const {
    const auto context = caller_.NewContext();
    const auto stream = server_.stub().WatchState(context.get(), request);
    v1::WatchStateResponse piece;
    EXPECT_FALSE(stream->Read(&piece));
    return stream->Finish();
  }
  void MakeGood(v1::CreateSessionRequest& request) const { request = feed_.Creation("new"); }
  grpc::Status Call(const v1::CreateSessionRequest& request) const { return caller_.Create(request).status; }
  void MakeGood(v1::ImportStateRequest::Target& target) const {
    target.set_session_id("new");
    *target.mutable_operator_() = SmallOperator(2);
  }
  grpc::Status Call(const v1::ImportStateRequest::Target& target) const {
    return caller_.Import(target, caller_.Export("a").reply).status;
  }

  // The call of a request that `change` has made bad.
  template <typename Request, typename Change>
  BadCall Bad(const char* name, const char* reason, const char* field, Change change) const {
    Request request;
    MakeGood(request);
    change(request);
    return {name, reason, field, [this, request] { return Call(request); }};
  }
  std::vector<BadCall> ForkCases() const {
    using R = v1::ForkSessionRequest;
    return {
        Bad<R>("fork: no prefix", "INVALID_NAME", "session", [](R& r) { r.set_name("a"); }),
        Bad<R>("fork: unknown", "SESSION_NOT_FOUND", "", [](R& r) { r.set_name("sessions/none"); }),
        Bad<R>("fork: no children", "INVALID_SPEC", "session_ids", [](R& r) { r.clear_session_ids(); }),
        Bad<R>("fork: too many children", "INVALID_SPEC", "session_ids",
               [](R& r) {
                 for (int i = 0; i < 256; ++i) r.add_session_ids("");
               }),
        Bad<R>("fork: bad id", "INVALID_NAME", "session_id", [](R& r) { r.add_session_ids("x y"); }),
        Bad<R>("fork: long id", "INVALID_NAME", "session_id", [](R& r) { r.add_session_ids(std::string(129, 'x')); }),
        Bad<R>("fork: an id twice", "DUPLICATE_SESSION", "", [](R& r) { r.add_session_ids("child"); }),
        Bad<R>("fork: its own id", "SESSION_EXISTS", "", [](R& r) { r.add_session_ids("a"); }),
        Bad<R>("fork: bad lease", "INVALID_NAME", "lease", [](R& r) { r.set_lease("none"); }),
        Bad<R>("fork: unknown lease", "LEASE_NOT_FOUND", "", [](R& r) { r.set_lease("leases/none"); }),
        Bad<R>("fork: no idle time", "INVALID_SPEC", "idle_ttl", [](R& r) { r.mutable_idle_ttl(); }),
        Bad<R>("fork: negative lifetime", "INVALID_SPEC", "max_lifetime",
               [](R& r) { r.mutable_max_lifetime()->set_seconds(-1); }),
    };
  }
  std::vector<BadCall> AcceptCases() const {
    using R = v1::AcceptTokensRequest;
    return {
        Bad<R>("accept: nothing", "BATCH_TOO_LARGE", "", [](R& r) { r.clear_acceptances(); }),
        Bad<R>("accept: too many sessions", "BATCH_TOO_LARGE", "",
               [](R& r) {
                 for (int i = 0; i < kMaxBatch; ++i) r.add_acceptances()->set_session("sessions/" + std::to_string(i));
               }),
        Bad<R>("accept: no prefix", "INVALID_NAME", "session",
               [](R& r) { r.mutable_acceptances(0)->set_session("b"); }),
        Bad<R>("accept: unknown", "SESSION_NOT_FOUND", "",
               [](R& r) { r.mutable_acceptances(0)->set_session("sessions/none"); }),
        Bad<R>("accept: twice", "DUPLICATE_SESSION", "", [](R& r) { r.add_acceptances()->set_session("sessions/b"); }),
        Bad<R>("accept: more than the draft", "TOO_MANY_TOKENS", "",
               [](R& r) { r.mutable_acceptances(0)->set_accepted_tokens(4); }),
        Bad<R>("accept: fewer than none", "TOO_MANY_TOKENS", "",
               [](R& r) { r.mutable_acceptances(0)->set_accepted_tokens(-1); }),
        Bad<R>("accept: without a draft", "TOO_MANY_TOKENS", "",
               [](R& r) { r.mutable_acceptances(0)->set_session("sessions/a"); }),
        Bad<R>("accept: another epoch", "EPOCH_MISMATCH", "",
               [](R& r) { r.mutable_acceptances(0)->set_session_epoch(9); }),
        Bad<R>("accept: bad request id", "INVALID_NAME", "request_id", [](R& r) { r.set_request_id("a b"); }),
        Bad<R>("accept: one bad row", "TOO_MANY_TOKENS", "",
               [](R& r) {
                 r.add_acceptances()->set_session("sessions/a");
                 r.mutable_acceptances(1)->set_accepted_tokens(1);
               }),
    };
  }
  std::vector<BadCall> WatchCases() const {
    using R = v1::WatchStateRequest;
    return {
        Bad<R>("watch: no policy", "INVALID_SPEC", "every", [](R&) {}),
        Bad<R>("watch: negative tokens", "INVALID_SPEC", "every_tokens", [](R& r) { r.set_every_tokens(-1); }),
        Bad<R>("watch: no time", "INVALID_SPEC", "every", [](R& r) { r.set_every_tokens(1), r.mutable_every(); }),
        Bad<R>("watch: unknown", "SESSION_NOT_FOUND", "",
               [](R& r) { r.set_every_tokens(1), r.set_name("sessions/none"); }),
        Bad<R>("watch: no prefix", "INVALID_NAME", "session", [](R& r) { r.set_every_tokens(1), r.set_name("a"); }),
    };
  }
  std::vector<BadCall> OtherCases() const {
    const auto export_of = [this](const std::string& name, v1::DType dtype) {
      v1::ExportStateRequest request;
      request.set_name(name);
      request.set_include_recurrent_state(true);
      request.set_recurrent_state_dtype(dtype);
      const Outcome<std::string> exported = caller_.Export(request);
      EXPECT_EQ(exported.reply, "");
      return exported.status;
    };
    return {
        {"checkpoint: unknown", "SESSION_NOT_FOUND", "", [this] { return caller_.Checkpoint("none").status; }},
        {"checkpoint: bad id", "INVALID_NAME", "checkpoint_id",
         [this] { return caller_.Checkpoint("a", "x/y").status; }},
        {"restore: unknown", "SESSION_NOT_FOUND", "", [this] { return caller_.Restore("none").status; }},
        {"restore: bad id", "INVALID_NAME", "checkpoint_id", [this] { return caller_.Restore("a", "..\\x").status; }},
        {"restore: no such checkpoint", "CHECKPOINT_NOT_FOUND", "",
         [this] { return caller_.Restore("a", "x").status; }},
        {"restore: none yet", "CHECKPOINT_NOT_FOUND", "", [this] { return caller_.Restore("b").status; }},
        {"list checkpoints: unknown", "SESSION_NOT_FOUND", "", [this] { return caller_.Checkpoints("none").status; }},
        {"list checkpoints: bad name", "INVALID_NAME", "session", [this] { return caller_.Checkpoints("a/b").status; }},
        {"delete checkpoint: unknown", "SESSION_NOT_FOUND", "",
         [this] { return caller_.DeleteCheckpoint("none", "x").status; }},
        {"delete checkpoint: bad id", "INVALID_NAME", "checkpoint_id",
         [this] { return caller_.DeleteCheckpoint("a", "../x").status; }},
        {"delete checkpoint: the newest", "INVALID_NAME", "checkpoint_id",
         [this] { return caller_.DeleteCheckpoint("a", "").status; }},
        {"delete checkpoint: no such", "CHECKPOINT_NOT_FOUND", "",
         [this] { return caller_.DeleteCheckpoint("a", "x").status; }},
        {"prefetch: nothing", "BATCH_TOO_LARGE", "", [this] { return caller_.Prefetch({}).status; }},
        {"prefetch: too many", "BATCH_TOO_LARGE", "",
         [this] {
           return caller_.Prefetch({"a", "b", "c", "d", "e"}).status;
         }},
        {"prefetch: bad name", "INVALID_NAME", "session", [this] { return caller_.Prefetch({"a/b"}).status; }},
        {"export: unknown", "SESSION_NOT_FOUND", "", [export_of] { return export_of("sessions/none", v1::DTYPE_F32); }},
        {"export: in half precision", "INVALID_TENSOR_DTYPE", "",
         [export_of] { return export_of("sessions/a", v1::DTYPE_F16); }},
        Bad<v1::CreateSessionRequest>("create: no idle time", "INVALID_SPEC", "idle_ttl",
                                      [](auto& r) { r.mutable_idle_ttl(); }),
        Bad<v1::CreateSessionRequest>("create: negative lifetime", "INVALID_SPEC", "max_lifetime",
                                      [](auto& r) { r.mutable_max_lifetime()->set_nanos(-1); }),
        Bad<v1::CreateSessionRequest>("create: bad lease", "INVALID_NAME", "lease",
                                      [](auto& r) { r.set_lease("sessions/a"); }),
        Bad<v1::CreateSessionRequest>("create: unknown lease", "LEASE_NOT_FOUND", "",
                                      [](auto& r) { r.set_lease("leases/none"); }),
        Bad<v1::ImportStateRequest::Target>("import: bad lease", "INVALID_NAME", "lease",
                                            [](auto& r) { r.set_lease("none"); }),
        Bad<v1::ImportStateRequest::Target>("import: no idle time", "INVALID_SPEC", "idle_ttl",
                                            [](auto& r) { r.mutable_idle_ttl(); }),
        Bad<v1::ImportStateRequest::Target>("import: negative lifetime", "INVALID_SPEC", "max_lifetime",
                                            [](auto& r) { r.mutable_max_lifetime()->set_seconds(-5); }),
        Bad<v1::ImportStateRequest::Target>("import: negative size", "INVALID_SPEC", "total_bytes",
                                            [](auto& r) { r.set_total_bytes(-1); }),
    };
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(2);
  mutable TestServer server_{Options(folder_.path())};
  const Caller caller_{server_};
};

TEST_F(BadStateInput, IsRefusedWithItsReasonAndChangesNothing) {
  std::vector<BadCall> cases;
  for (const auto& more : {ForkCases(), AcceptCases(), WatchCases(), OtherCases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  ExpectRefused(cases, [this] { return Everything(); });
}

// The same calls right after show that the refusals above were not for another cause.
TEST_F(BadStateInput, IsNotSeenWhereThereIsNone) {
  EXPECT_TRUE(caller_.Fork("a", {"child"}).ok());
  EXPECT_TRUE(caller_.Accept("b", 1).ok());
  EXPECT_TRUE(caller_.Checkpoint("a", "named").ok());
  EXPECT_TRUE(caller_.Restore("a", "named").ok());
  EXPECT_EQ(caller_.Checkpoints("a").reply.checkpoints_size(), 1);
  EXPECT_TRUE(caller_.DeleteCheckpoint("a", "named").ok());
  EXPECT_TRUE(caller_.Prefetch({"a", "b"}).ok());
}

TEST_F(BadStateInput, OfAStrangerIsAsIfTheSessionWereNotThere) {
  const Caller stranger(server_, "Bearer other");
  for (const grpc::Status& status :
       {stranger.Fork("a", {"x"}).status, stranger.Checkpoint("a").status, stranger.Restore("a").status,
        stranger.Accept("a", 0).status, stranger.Checkpoints("a").status, stranger.DeleteCheckpoint("a", "x").status}) {
    EXPECT_TRUE(RefusedAs(status, "SESSION_NOT_FOUND"));
  }
  const auto hint = stranger.Prefetch({"a"});
  ASSERT_TRUE(hint.ok()) << hint.status.error_message();
  EXPECT_EQ(hint.reply.resident() + hint.reply.started(), 0);
}

}  // namespace
}  // namespace gdn::bad_state_input_test
