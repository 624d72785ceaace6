// Every call that uses a session's state refuses another epoch than the caller names, before anything is made or sent.
//
// A crash or a restore loses answered steps and begins a new epoch. A caller who does not know of it yet must not get
// a fork, a file or a checkpoint of the older state. The first test walks all methods of the service, so that a new one
// has to be put into its table.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "client/cpp/client.h"
#include "tests/integration/support/prefix_fixture.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::session_epochs_test {
namespace {

using google::protobuf::Descriptor;

constexpr TokenRange kPrompt = {0, 7};

class SessionEpochs : public ::testing::Test {
 protected:
  using Epoch = std::optional<int64_t>;
  using Stub = v1::GdnService::Stub;

  SessionEpochs() { Start(); }

  void Start() {
    server_ = nullptr;  // frees the folder, as a crash does
    GdnServerOptions options{.models = TokenFeed::Models(), .states = {.disk = {.directory = folder_.path()}}};
    options.memory.prefix_cache_bytes = kManyBytes;
    server_ = std::make_unique<TestServer>(std::move(options));
    caller_ = std::make_unique<Caller>(*server_);
  }

  template <typename Request>
  static Request At(Request request, const Epoch& epoch) {
    if (epoch.has_value()) request.set_session_epoch(*epoch);
    return request;
  }
  template <typename Request>
  static Request Named(const std::string& id, const Epoch& epoch) {
    Request request;
    request.set_name("sessions/" + id);
    return At(std::move(request), epoch);
  }
  template <typename Request, typename Response>
  grpc::Status Call(UnaryMethod<Request, Response> method, const Request& request) {
    Response response;
    return (server_->stub().*method)(caller_->NewContext().get(), request, &response);
  }

  grpc::Status Fork(const std::string& id, const std::vector<std::string>& children, const Epoch& epoch) {
    return caller_->Fork(At(ForkOf(id, children), epoch)).status;
  }
  grpc::Status ForkOfMany(const std::string& id, const Epoch& epoch) {
    v1::ForkSessionsRequest request;
    *request.add_requests() = At(ForkOf(id, {id + "-child"}), epoch);
    v1::ForkSessionsResponse response;
    const grpc::Status status = server_->stub().ForkSessions(caller_->NewContext().get(), request, &response);
    return status.ok() ? StatusOf(response.results(0).error()) : status;
  }
  grpc::Status Reset(const std::string& id, const Epoch& epoch) {
    v1::ResetSessionsRequest request;
    *request.add_resets() = Named<v1::SessionReset>(id, epoch);
    v1::ResetSessionsResponse response;
    const grpc::Status status = server_->stub().ResetSessions(caller_->NewContext().get(), request, &response);
    return status.ok() ? StatusOf(response.results(0).error()) : status;
  }
  grpc::Status Export(const std::string& id, const Epoch& epoch) {
    return caller_->Export(Named<v1::ExportStateRequest>(id, epoch)).status;
  }
  grpc::Status Checkpoint(const std::string& id, const std::string& checkpoint_id, const Epoch& epoch) {
    auto request = Named<v1::CheckpointSessionRequest>(id, epoch);
    request.set_checkpoint_id(checkpoint_id);
    return Call(&Stub::CheckpointSession, request);
  }
  grpc::Status Restore(const std::string& id, const Epoch& epoch) {
    return Call(&Stub::RestoreCheckpoint, Named<v1::RestoreCheckpointRequest>(id, epoch));
  }
  grpc::Status KeepPrefix(const std::string& id, const Epoch& epoch) {
    auto request = Named<v1::KeepPrefixRequest>(id, epoch);
    *request.mutable_prefix() = PrefixOf({kPrompt.count});
    return Call(&Stub::KeepPrefix, request);
  }
  v1::SnapshotSessionRequest SnapshotOf(const std::string& id, const Epoch& epoch) {
    v1::SnapshotSessionRequest request;
    request.set_session("sessions/" + id);
    request.set_key("key" + std::to_string(keys_++));
    return At(std::move(request), epoch);
  }
  grpc::Status Snapshot(const std::string& id, const Epoch& epoch) {
    return Call(&Stub::SnapshotSession, SnapshotOf(id, epoch));
  }
  grpc::Status SnapshotMany(const std::string& id, const Epoch& epoch) {
    v1::SnapshotSessionsRequest request;
    *request.add_requests() = SnapshotOf(id, epoch);
    v1::SnapshotSessionsResponse response;
    const grpc::Status status = server_->stub().SnapshotSessions(caller_->NewContext().get(), request, &response);
    return status.ok() ? StatusOf(response.results(0).error()) : status;
  }
  // OK once the first snapshot begins to come.
  grpc::Status Watch(const std::string& id, const Epoch& epoch) {
    auto request = Named<v1::WatchStateRequest>(id, epoch);
    request.set_every_tokens(1);
    const auto context = caller_->NewContext();
    const auto reader = server_->stub().WatchState(context.get(), request);
    v1::WatchStateResponse piece;
    if (!reader->Read(&piece)) return reader->Finish();
    context->TryCancel();
    while (reader->Read(&piece)) {
    }
    static_cast<void>(reader->Finish());
    return grpc::Status::OK;
  }
  grpc::Status Prefill(const std::string& id, const Epoch& epoch) {
    return caller_->Prefill(At(feed_.Prefill(id, {20, 3}), epoch)).status;
  }
  grpc::Status StreamPrefill(const std::string& id, const Epoch& epoch) {
    const auto context = caller_->NewContext();
    const auto stream = server_->stub().StreamPrefill(context.get());
    const auto replies = Converse(*stream, std::vector{StreamSegment(At(feed_.Prefill(id, {20, 3}), epoch))});
    return StatusOf(replies.front().status());
  }
  v1::DecodeRequest DecodeAt(const std::string& id, const Epoch& epoch) {
    v1::DecodeRequest request = feed_.Decode({id}, {20, 1});
    if (epoch.has_value()) request.add_session_epochs(*epoch);
    return request;
  }
  grpc::Status StreamDecode(const std::string& id, const Epoch& epoch) {
    const auto context = caller_->NewContext();
    const auto stream = server_->stub().StreamDecode(context.get());
    const auto replies = Converse(*stream, std::vector{StreamStep(DecodeAt(id, epoch))});
    return StatusOf(replies.front().status());
  }
  grpc::Status StreamAStep(const std::string& id, const Epoch& epoch) {
    const auto context = caller_->NewContext();
    const auto stream = server_->stub().StreamStep(context.get());
    v1::StreamStepRequest message;
    *message.mutable_step() = AsStep(DecodeAt(id, epoch));
    const auto replies = Converse(*stream, std::vector{message});
    return StatusOf(replies.front().status());
  }
  grpc::Status Accept(const std::string& id, const Epoch& epoch) {
    v1::AcceptTokensRequest request = AcceptOf({id}, {0});
    if (epoch.has_value()) request.mutable_acceptances(0)->set_session_epoch(*epoch);
    return caller_->Accept(request).status;
  }
  static grpc::Status StatusOf(const google::rpc::Status& status) {
    return {static_cast<grpc::StatusCode>(status.code()), status.message(), status.SerializeAsString()};
  }

  // All that a refused call must leave as it is.
  std::string Everything(const std::string& id) {
    std::string all = caller_->State(id);
    const auto list = caller_->List(100);
    for (const v1::Session& session : list.reply.sessions()) {
      all +=
          session.name() + " " + std::to_string(session.epoch()) + " " + std::to_string(session.durable_time().nanos());
    }
    v1::ListSnapshotsResponse snapshots;
    EXPECT_TRUE(
        server_->stub().ListSnapshots(caller_->NewContext().get(), v1::ListSnapshotsRequest(), &snapshots).ok());
    for (const v1::Snapshot& snapshot : snapshots.snapshots()) all += snapshot.key();
    const auto checkpoints = caller_->Checkpoints(id);
    for (const v1::Checkpoint& named : checkpoints.reply.checkpoints()) all += named.checkpoint_id();
    return all;
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
  int keys_ = 0;  // keys of snapshots that were asked for
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Caller> caller_;
};

// True if the message, or a message in it, has the field.
bool Has(const Descriptor& message, const std::string& field, std::set<const Descriptor*> seen = {}) {
  if (!seen.insert(&message).second) return false;
  for (int i = 0; i < message.field_count(); ++i) {
    if (message.field(i)->name() == field) return true;
    const Descriptor* const inner = message.field(i)->message_type();
    if (inner != nullptr && Has(*inner, field, seen)) return true;
  }
  return false;
}

TEST_F(SessionEpochs, AreHonouredByEveryMethodThatUsesASessionsState) {
  const std::map<std::string, std::function<grpc::Status(const std::string&, const Epoch&)>> honoured = {
      {"ForkSession", [&](const auto& id, const auto& at) { return Fork(id, {id + "-child"}, at); }},
      {"ForkSessions", [&](const auto& id, const auto& at) { return ForkOfMany(id, at); }},
      {"ResetSessions", [&](const auto& id, const auto& at) { return Reset(id, at); }},
      {"ExportState", [&](const auto& id, const auto& at) { return Export(id, at); }},
      {"CheckpointSession", [&](const auto& id, const auto& at) { return Checkpoint(id, "named", at); }},
      {"RestoreCheckpoint", [&](const auto& id, const auto& at) { return Restore(id, at); }},
      {"WatchState", [&](const auto& id, const auto& at) { return Watch(id, at); }},
      {"KeepPrefix", [&](const auto& id, const auto& at) { return KeepPrefix(id, at); }},
      {"SnapshotSession", [&](const auto& id, const auto& at) { return Snapshot(id, at); }},
      {"SnapshotSessions", [&](const auto& id, const auto& at) { return SnapshotMany(id, at); }},
      {"AcceptTokens", [&](const auto& id, const auto& at) { return Accept(id, at); }},
      {"Prefill", [&](const auto& id, const auto& at) { return Prefill(id, at); }},
      {"StreamPrefill", [&](const auto& id, const auto& at) { return StreamPrefill(id, at); }},
      {"Decode", [&](const auto& id, const auto& at) { return caller_->Decode(DecodeAt(id, at)).status; }},
      {"StreamDecode", [&](const auto& id, const auto& at) { return StreamDecode(id, at); }},
      {"Step", [&](const auto& id, const auto& at) { return caller_->Step(AsStep(DecodeAt(id, at))).status; }},
      {"StreamStep", [&](const auto& id, const auto& at) { return StreamAStep(id, at); }},
  };
  const std::map<std::string, std::string> need_none = {
      {"GetServerInfo", "names no session"},
      {"ListModels", "names no session"},
      {"GetModel", "names no session"},
      {"CreateSession", "makes a session; a prefix to begin with is named by its tokens"},
      {"GetSession", "tells the epoch"},
      {"ListSessions", "tells the epochs"},
      {"DeleteSession", "of whatever state nothing is left"},
      {"CreateSessions", "as CreateSession"},
      {"DeleteSessions", "as DeleteSession"},
      {"ImportState", "makes a session, of a file whose metadata has the epoch"},
      {"OpenLease", "names no session"},
      {"RenewLease", "names no session"},
      {"EndLease", "ends sessions of whatever state"},
      {"ListLeases", "names no session"},
      {"DropPrefixes", "names no session"},
      {"ListSnapshots", "names no session"},
      {"DeleteSnapshots", "names no session"},
      {"ListCheckpoints", "tells each checkpoint's epoch"},
      {"DeleteCheckpoint", "a named checkpoint is not the session's state"},
      {"PrefetchSessions", "a hint: states move as they are, and the next call names its epoch"},
      {"EvictSession", "states move as they are, and the reply tells the epoch"},
      {"ShareMemory", "names no session"},
      {"TraceCalls", "names no session"},
      {"GetMetrics", "names no session"},
      {"Drain", "names no session"},
  };
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("gdn.v1.GdnService");
  ASSERT_NE(service, nullptr);
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string& method = service->method(i)->name();
    const Descriptor& request = *service->method(i)->input_type();
    EXPECT_EQ(honoured.contains(method) + need_none.contains(method), 1)
        << method << ": does it use a session's state? Then its request needs a session_epoch; else say why not";
    EXPECT_EQ(Has(request, "session_epoch") || Has(request, "session_epochs"), honoured.contains(method)) << method;
  }

  for (const auto& [method, call] : honoured) {
    SCOPED_TRACE(method);
    const std::string& id = method;
    feed_.Start(*caller_, id, kPrompt, 0);
    int64_t epoch = 1;
    if (method != "KeepPrefix") {  // which takes no state that has come over the disk
      ASSERT_TRUE(caller_->Checkpoint(id).ok());
      ASSERT_TRUE(caller_->Restore(id).ok());
      epoch = 2;
    }
    if (method == "AcceptTokens") {
      ASSERT_TRUE(caller_->Decode(feed_.Draft({id}, {{20, 2}})).ok());
    }
    const std::string before = Everything(id);
    for (const int64_t other : {epoch - 1, epoch + 1}) {
      EXPECT_TRUE(RefusedAs(call(id, other), "EPOCH_MISMATCH",
                            {{"session", "sessions/" + id},
                             {"epoch", std::to_string(epoch)},
                             {"expected", std::to_string(other)},
                             {"token_count", std::to_string(kPrompt.count)}}));
      EXPECT_EQ(Everything(id), before) << "another epoch changed something";
    }
    const grpc::Status right = call(id, epoch);
    EXPECT_TRUE(right.ok()) << right.error_message();
    ASSERT_TRUE(caller_->Delete(id).ok());
    if (method == "ForkSession" || method == "ForkSessions") {
      ASSERT_TRUE(caller_->Delete(id + "-child").ok());
    }
    feed_.Start(*caller_, id, kPrompt, 0);
    ASSERT_TRUE(caller_->Checkpoint(id).ok());
    if (method == "AcceptTokens") {
      ASSERT_TRUE(caller_->Decode(feed_.Draft({id}, {{20, 2}})).ok());
    }
    const grpc::Status any = call(id, std::nullopt);
    EXPECT_TRUE(any.ok()) << any.error_message();
  }
}

TEST_F(SessionEpochs, ACrashIsNoticedByWhateverCallComesFirst) {
  const std::map<std::string, std::function<grpc::Status(const Epoch&)>> calls = {
      {"fork", [&](const auto& at) { return Fork("a", {"child"}, at); }},
      {"export", [&](const auto& at) { return Export("a", at); }},
      {"checkpoint", [&](const auto& at) { return Checkpoint("a", "", at); }},
      {"restore", [&](const auto& at) { return Restore("a", at); }},
      {"watch", [&](const auto& at) { return Watch("a", at); }},
      {"keep", [&](const auto& at) { return KeepPrefix("a", at); }},
      {"reset", [&](const auto& at) { return Reset("a", at); }},
  };
  feed_.Start(*caller_, "a", kPrompt, 0);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  feed_.DecodeAll(*caller_, "a", {7, 5});  // answered, and lost
  Start();
  ASSERT_REPLY(const auto found, caller_->Get("a"));
  ASSERT_EQ(found.layers(0).token_count(), kPrompt.count);
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(RefusedAs(call(1), "EPOCH_MISMATCH",
                          {{"epoch", std::to_string(found.epoch())}, {"token_count", std::to_string(kPrompt.count)}}));
  }
  EXPECT_EQ(caller_->List(100).reply.sessions_size(), 1) << "no child was made of the older state";
}

TEST_F(SessionEpochs, AForkIsRecognisedInWhateverEpochItIsSentAgain) {
  feed_.Start(*caller_, "a", kPrompt, 0);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  feed_.DecodeAll(*caller_, "a", {7, 5});
  ASSERT_TRUE(Fork("a", {"x", "y"}, 1).ok());
  const std::string made = caller_->State("x");
  ASSERT_TRUE(Restore("a", 1).ok());
  for (const Epoch epoch : {Epoch(1), Epoch(2), Epoch()}) {
    ASSERT_REPLY(const auto again, caller_->Fork(At(ForkOf("a", {"x", "y"}), epoch)));
    ASSERT_EQ(again.sessions_size(), 2);
    EXPECT_EQ(again.sessions(0).layers(0).token_count(), 12) << "made before the restore";
    EXPECT_EQ(caller_->State("x"), made);
  }
  EXPECT_TRUE(RefusedAs(Fork("a", {"z"}, 1), "EPOCH_MISMATCH"));
  EXPECT_EQ(caller_->Get("z").reason(), "SESSION_NOT_FOUND");
  ASSERT_TRUE(caller_->Delete("y").ok());
  EXPECT_TRUE(RefusedAs(Fork("a", {"x", "y"}, 1), "EPOCH_MISMATCH")) << "one of them would be made of another state";
  EXPECT_EQ(caller_->Get("y").reason(), "SESSION_NOT_FOUND");
}

TEST_F(SessionEpochs, AWatchEndsWhenTheSessionGoesBack) {
  feed_.Start(*caller_, "a", kPrompt, 0);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  const auto client = std::make_unique<Client>(server_->channel());
  for (const bool by_tokens : {true, false}) {
    const int64_t epoch = caller_->Get("a").reply.epoch();
    auto request = Named<v1::WatchStateRequest>("a", epoch);
    if (by_tokens) request.set_every_tokens(1);
    if (!by_tokens) request.mutable_every()->set_seconds(3600);
    auto watch = client->WatchState(request);
    ASSERT_TRUE(watch.ok()) << watch.status();
    ASSERT_TRUE(watch->Next().ok());
    ASSERT_TRUE(Restore("a", epoch).ok());
    const auto next = watch->Next();
    EXPECT_EQ(ErrorReason(next.status()), reason::kEpochMismatch) << next.status();
  }
}

}  // namespace
}  // namespace gdn::session_epochs_test
