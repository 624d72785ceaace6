// Bad input to the calls that do other things with a session's states than step them: the code, the reason, and that
// nothing has changed.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/integration/service_helpers.h"
#include "tests/integration/token_feed.h"

namespace gdn {
namespace {

constexpr int kMaxBatch = 4;
constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
constexpr auto kNotFound = grpc::StatusCode::NOT_FOUND;

struct Case {
  std::string name;
  std::function<grpc::Status()> call;
  grpc::StatusCode code;
  std::string reason;
  std::string field;  // expected metadata "field"; "": not looked at
};

class BadStateInput : public ::testing::Test {
 protected:
  static TestServerOptions Options(const std::string& folder) {
    TestServerOptions options;
    options.models = TokenFeed::Models();
    options.disk_dir = folder;
    options.limits.max_batch = kMaxBatch;
    return options;
  }

  // "a": a checkpoint, then steps. "b": a draft of 3 in layer 0.
  void SetUp() override {
    for (const char* id : {"a", "b"}) {
      ASSERT_TRUE(feed_.Create(caller_, id).ok());
      ASSERT_TRUE(caller_.Prefill(feed_.Prefill(id, {0, 5})).ok());
    }
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
  void MakeGood(v1::ForkSessionRequest& request) const {
    request.set_name("sessions/a");
    request.add_session_ids("child");
  }
  grpc::Status Call(const v1::ForkSessionRequest& request) const { return caller_.Fork(request).status; }
  void MakeGood(v1::AcceptTokensRequest& request) const {
    request.add_acceptances()->set_session("sessions/b");
    request.mutable_acceptances(0)->set_accepted_tokens(1);
  }
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
  Case Bad(const std::string& name, Change change, grpc::StatusCode code, const std::string& reason,
           const std::string& field = "") const {
    Request request;
    MakeGood(request);
    change(request);
    return {name, [this, request] { return Call(request); }, code, reason, field};
  }

  std::vector<Case> ForkCases() const {
    using R = v1::ForkSessionRequest;
    return {
        Bad<R>(
            "fork: no prefix", [](R& r) { r.set_name("a"); }, kInvalid, "INVALID_NAME", "session"),
        Bad<R>(
            "fork: unknown", [](R& r) { r.set_name("sessions/none"); }, kNotFound, "SESSION_NOT_FOUND"),
        Bad<R>(
            "fork: no children", [](R& r) { r.clear_session_ids(); }, kInvalid, "INVALID_SPEC", "session_ids"),
        Bad<R>(
            "fork: too many children",
            [](R& r) {
              for (int i = 0; i < 256; ++i) r.add_session_ids("");
            },
            kInvalid, "INVALID_SPEC", "session_ids"),
        Bad<R>(
            "fork: bad id", [](R& r) { r.add_session_ids("x y"); }, kInvalid, "INVALID_NAME", "session_id"),
        Bad<R>(
            "fork: long id", [](R& r) { r.add_session_ids(std::string(129, 'x')); }, kInvalid, "INVALID_NAME",
            "session_id"),
        Bad<R>(
            "fork: an id twice", [](R& r) { r.add_session_ids("child"); }, kInvalid, "DUPLICATE_SESSION"),
        Bad<R>(
            "fork: its own id", [](R& r) { r.add_session_ids("a"); }, grpc::StatusCode::ALREADY_EXISTS,
            "SESSION_EXISTS"),
        Bad<R>(
            "fork: no idle time", [](R& r) { r.mutable_idle_ttl(); }, kInvalid, "INVALID_SPEC", "idle_ttl"),
        Bad<R>(
            "fork: negative lifetime", [](R& r) { r.mutable_max_lifetime()->set_seconds(-1); }, kInvalid,
            "INVALID_SPEC", "max_lifetime"),
    };
  }
  std::vector<Case> AcceptCases() const {
    using R = v1::AcceptTokensRequest;
    return {
        Bad<R>(
            "accept: nothing", [](R& r) { r.clear_acceptances(); }, kInvalid, "BATCH_TOO_LARGE"),
        Bad<R>(
            "accept: too many sessions",
            [](R& r) {
              for (int i = 0; i < kMaxBatch; ++i) r.add_acceptances()->set_session("sessions/" + std::to_string(i));
            },
            kInvalid, "BATCH_TOO_LARGE"),
        Bad<R>(
            "accept: no prefix", [](R& r) { r.mutable_acceptances(0)->set_session("b"); }, kInvalid, "INVALID_NAME",
            "session"),
        Bad<R>(
            "accept: unknown", [](R& r) { r.mutable_acceptances(0)->set_session("sessions/none"); }, kNotFound,
            "SESSION_NOT_FOUND"),
        Bad<R>(
            "accept: twice", [](R& r) { r.add_acceptances()->set_session("sessions/b"); }, kInvalid,
            "DUPLICATE_SESSION"),
        Bad<R>(
            "accept: more than the draft", [](R& r) { r.mutable_acceptances(0)->set_accepted_tokens(4); }, kInvalid,
            "TOO_MANY_TOKENS"),
        Bad<R>(
            "accept: fewer than none", [](R& r) { r.mutable_acceptances(0)->set_accepted_tokens(-1); }, kInvalid,
            "TOO_MANY_TOKENS"),
        Bad<R>(
            "accept: without a draft", [](R& r) { r.mutable_acceptances(0)->set_session("sessions/a"); }, kInvalid,
            "TOO_MANY_TOKENS"),
        Bad<R>(
            "accept: another epoch", [](R& r) { r.mutable_acceptances(0)->set_session_epoch(9); },
            grpc::StatusCode::ABORTED, "EPOCH_MISMATCH"),
        Bad<R>(
            "accept: bad request id", [](R& r) { r.set_request_id("a b"); }, kInvalid, "INVALID_NAME", "request_id"),
        Bad<R>(
            "accept: one bad row",
            [](R& r) {
              r.add_acceptances()->set_session("sessions/a");
              r.mutable_acceptances(1)->set_accepted_tokens(1);
            },
            kInvalid, "TOO_MANY_TOKENS"),
    };
  }
  std::vector<Case> WatchCases() const {
    using R = v1::WatchStateRequest;
    return {
        Bad<R>(
            "watch: no policy", [](R&) {}, kInvalid, "INVALID_SPEC", "every"),
        Bad<R>(
            "watch: negative tokens", [](R& r) { r.set_every_tokens(-1); }, kInvalid, "INVALID_SPEC", "every_tokens"),
        Bad<R>(
            "watch: no time", [](R& r) { r.mutable_every(); }, kInvalid, "INVALID_SPEC", "every"),
        Bad<R>(
            "watch: unknown", [](R& r) { r.set_every_tokens(1), r.set_name("sessions/none"); }, kNotFound,
            "SESSION_NOT_FOUND"),
        Bad<R>(
            "watch: no prefix", [](R& r) { r.set_every_tokens(1), r.set_name("a"); }, kInvalid, "INVALID_NAME",
            "session"),
    };
  }
  std::vector<Case> OtherCases() const {
    const auto export_of = [this](const std::string& name, v1::DType dtype) {
      v1::ExportStateRequest request;
      request.set_name(name);
      request.set_include_recurrent_state(true);
      request.set_recurrent_state_dtype(dtype);
      const auto context = caller_.NewContext();
      const auto stream = server_.stub().ExportState(context.get(), request);
      v1::ExportStateResponse piece;
      while (stream->Read(&piece)) ADD_FAILURE() << "a piece came";
      return stream->Finish();
    };
    return {
        {"checkpoint: unknown", [this] { return caller_.Checkpoint("none").status; }, kNotFound, "SESSION_NOT_FOUND",
         ""},
        {"checkpoint: bad id", [this] { return caller_.Checkpoint("a", "x/y").status; }, kInvalid, "INVALID_NAME",
         "checkpoint_id"},
        {"restore: unknown", [this] { return caller_.Restore("none").status; }, kNotFound, "SESSION_NOT_FOUND", ""},
        {"restore: bad id", [this] { return caller_.Restore("a", "..\\x").status; }, kInvalid, "INVALID_NAME",
         "checkpoint_id"},
        {"restore: no such checkpoint", [this] { return caller_.Restore("a", "x").status; }, kNotFound,
         "CHECKPOINT_NOT_FOUND", ""},
        {"restore: none yet", [this] { return caller_.Restore("b").status; }, kNotFound, "CHECKPOINT_NOT_FOUND", ""},
        {"prefetch: nothing", [this] { return caller_.Prefetch({}).status; }, kInvalid, "BATCH_TOO_LARGE", ""},
        {"prefetch: too many",
         [this] {
           return caller_.Prefetch({"a", "b", "c", "d", "e"}).status;
         },
         kInvalid, "BATCH_TOO_LARGE", ""},
        {"prefetch: bad name", [this] { return caller_.Prefetch({"a/b"}).status; }, kInvalid, "INVALID_NAME",
         "session"},
        {"export: unknown", [export_of] { return export_of("sessions/none", v1::DTYPE_F32); }, kNotFound,
         "SESSION_NOT_FOUND", ""},
        {"export: in half precision", [export_of] { return export_of("sessions/a", v1::DTYPE_F16); }, kInvalid,
         "INVALID_TENSOR_DTYPE", ""},
        Bad<v1::CreateSessionRequest>(
            "create: no idle time", [](auto& r) { r.mutable_idle_ttl(); }, kInvalid, "INVALID_SPEC", "idle_ttl"),
        Bad<v1::CreateSessionRequest>(
            "create: negative lifetime", [](auto& r) { r.mutable_max_lifetime()->set_nanos(-1); }, kInvalid,
            "INVALID_SPEC", "max_lifetime"),
        Bad<v1::ImportStateRequest::Target>(
            "import: no idle time", [](auto& r) { r.mutable_idle_ttl(); }, kInvalid, "INVALID_SPEC", "idle_ttl"),
        Bad<v1::ImportStateRequest::Target>(
            "import: negative lifetime", [](auto& r) { r.mutable_max_lifetime()->set_seconds(-5); }, kInvalid,
            "INVALID_SPEC", "max_lifetime"),
        Bad<v1::ImportStateRequest::Target>(
            "import: negative size", [](auto& r) { r.set_total_bytes(-1); }, kInvalid, "INVALID_SPEC", "total_bytes"),
    };
  }

  const ScratchFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(2);
  mutable TestServer server_{Options(folder_.path())};
  const Caller caller_{server_};
};

TEST_F(BadStateInput, IsRefusedWithItsReasonAndChangesNothing) {
  std::vector<Case> cases;
  for (const auto& more : {ForkCases(), AcceptCases(), WatchCases(), OtherCases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  const std::string before = Everything();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const grpc::Status status = c.call();
    EXPECT_EQ(status.error_code(), c.code) << status.error_message();
    const google::rpc::ErrorInfo info = ErrorInfoOf(status);
    EXPECT_EQ(info.reason(), c.reason) << status.error_message();
    EXPECT_EQ(info.domain(), "gdn.v1");
    if (!c.field.empty()) {
      ASSERT_EQ(info.metadata().count("field"), 1u) << status.error_message();
      EXPECT_EQ(info.metadata().at("field"), c.field);
    }
    EXPECT_EQ(Everything(), before);
  }
}

// The same calls right after show that the refusals above were not for another cause.
TEST_F(BadStateInput, IsNotSeenWhereThereIsNone) {
  EXPECT_TRUE(caller_.Fork("a", {"child"}).ok());
  EXPECT_TRUE(caller_.Accept("b", 1).ok());
  EXPECT_TRUE(caller_.Checkpoint("a", "named").ok());
  EXPECT_TRUE(caller_.Restore("a", "named").ok());
  EXPECT_TRUE(caller_.Prefetch({"a", "b"}).ok());
}

TEST_F(BadStateInput, OfAStrangerIsAsIfTheSessionWereNotThere) {
  const Caller stranger(server_, "Bearer other");
  for (const grpc::Status& status : {stranger.Fork("a", {"x"}).status, stranger.Checkpoint("a").status,
                                     stranger.Restore("a").status, stranger.Accept("a", 0).status}) {
    EXPECT_EQ(status.error_code(), kNotFound);
    EXPECT_EQ(ErrorInfoOf(status).reason(), "SESSION_NOT_FOUND");
  }
  const auto hint = stranger.Prefetch({"a"});
  ASSERT_TRUE(hint.ok()) << hint.status.error_message();
  EXPECT_EQ(hint.reply.resident() + hint.reply.started(), 0);
}

}  // namespace
}  // namespace gdn
