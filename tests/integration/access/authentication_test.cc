// Logins: every RPC is called without a good login and as somebody else, and tokens change while clients go on.
#include <google/protobuf/descriptor.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cpp/client.h"
#include "client/cpp/client_tls.h"
#include "tests/integration/support/captured_log.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_logins.h"
#include "tests/support/certificates.h"
#include "tests/support/http_client.h"

namespace gdn::authentication_test {
namespace {

// The outcome of a call of any method.
struct Answer {
  grpc::Status status;
  std::vector<std::string> messages;

  std::string reason() const { return ErrorInfoOf(status).reason(); }
  // All of it, to compare.
  std::string Text() const {
    std::string text = absl::StrCat(static_cast<int>(status.error_code()), " ", status.error_message(), " ",
                                    status.error_details(), "\n");
    for (const std::string& message : messages) absl::StrAppend(&text, message, "\n");
    return text;
  }
};

// Sends one message and reads what there is, at most one message: some streams have no end.
Answer Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& request,
            const std::string& authorization, const std::string& claim = "") {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  if (!claim.empty()) context.AddMetadata("x-gdn-verified-subject", claim);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/gdn.v1.GdnService/" + method, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  wait();
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  wait();
  Answer answer;
  grpc::ByteBuffer message;
  call->Read(&message, nullptr);
  if (wait()) {
    grpc::Slice whole;
    EXPECT_TRUE(message.DumpToSingleSlice(&whole).ok());
    answer.messages.emplace_back(reinterpret_cast<const char*>(whole.begin()), whole.size());
    if (method == "WatchState" || method == "ShareMemory") context.TryCancel();
  }
  call->Finish(&answer.status, nullptr);
  wait();
  return answer;
}

class Authentication : public TokenLogins {};

std::vector<std::string> Methods() {
  std::vector<std::string> names;
  const auto* const service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("gdn.v1.GdnService");
  for (int i = 0; i < service->method_count(); ++i) names.push_back(service->method(i)->name());
  return names;
}

TEST_F(Authentication, EveryMethodWantsALogin) {
  TestServer server(Options());
  ASSERT_GT(Methods().size(), 20u);
  for (const std::string& method : Methods()) {
    for (const auto& [authorization, reason] : {std::pair("", "UNAUTHENTICATED"),
                                                {"Bearer wrong", "UNAUTHENTICATED"},
                                                {"alice-token", "UNAUTHENTICATED"},
                                                {"Bearer late-token", "TOKEN_EXPIRED"},
                                                {"Bearer nobody-token", "PERMISSION_DENIED"}}) {
      const Answer answer = Call(server.channel(), method, "", authorization);
      EXPECT_EQ(answer.reason(), reason) << method << " with '" << authorization << "'";
      EXPECT_TRUE(answer.messages.empty()) << method;
    }
    const Answer claimed = Call(server.channel(), method, "", "", "alice");
    EXPECT_EQ(claimed.reason(), "UNAUTHENTICATED") << method << ": whoever is no proxy of ours cannot say who it is";
    EXPECT_NE(Call(server.channel(), method, "", kAlice).status.error_code(), grpc::StatusCode::UNAUTHENTICATED)
        << method;
  }
}

// Requests that name the session `id`, of every method that takes one.
std::map<std::string, std::string> RequestsFor(const TokenFeed& feed, const std::string& id) {
  const std::string name = "sessions/" + id;
  std::map<std::string, std::string> requests;
  const auto named = [&](const std::string& method, auto request) {
    request.set_name(name);
    requests[method] = request.SerializeAsString();
  };
  named("GetSession", v1::GetSessionRequest());
  named("DeleteSession", v1::DeleteSessionRequest());
  named("EvictSession", v1::EvictSessionRequest());
  v1::KeepPrefixRequest keep;
  keep.mutable_prefix()->add_segments()->set_tokens(3);
  keep.mutable_prefix()->mutable_segments(0)->set_content_sha256(std::string(32, 'x'));
  named("KeepPrefix", keep);
  named("ExportState", v1::ExportStateRequest());
  named("CheckpointSession", v1::CheckpointSessionRequest());
  named("RestoreCheckpoint", v1::RestoreCheckpointRequest());
  named("ListCheckpoints", v1::ListCheckpointsRequest());
  v1::DeleteCheckpointRequest drop;
  drop.set_checkpoint_id("c");
  named("DeleteCheckpoint", drop);
  v1::WatchStateRequest watch;
  watch.set_every_tokens(1);
  named("WatchState", watch);
  requests["ForkSession"] = ForkOf(id, {"child"}).SerializeAsString();
  v1::ForkSessionsRequest forks;
  *forks.add_requests() = ForkOf(id, {"child"});
  requests["ForkSessions"] = forks.SerializeAsString();
  v1::DeleteSessionsRequest deletions;
  deletions.add_names(name);
  requests["DeleteSessions"] = deletions.SerializeAsString();
  v1::ResetSessionsRequest resets;
  resets.add_resets()->set_name(name);
  requests["ResetSessions"] = resets.SerializeAsString();
  v1::SnapshotSessionsRequest snapshots;
  snapshots.add_requests()->set_session(name);
  snapshots.mutable_requests(0)->set_key("key");
  requests["SnapshotSession"] = snapshots.requests(0).SerializeAsString();
  requests["SnapshotSessions"] = snapshots.SerializeAsString();
  requests["AcceptTokens"] = AcceptOf({id}, {1}).SerializeAsString();
  v1::PrefetchSessionsRequest prefetch;
  prefetch.add_names(name);
  requests["PrefetchSessions"] = prefetch.SerializeAsString();
  requests["Prefill"] = feed.Prefill(id, {3, 2}).SerializeAsString();
  requests["StreamPrefill"] = StreamSegment(feed.Prefill(id, {3, 2})).SerializeAsString();
  requests["Decode"] = feed.Decode({id}, TokenRange{3, 1}).SerializeAsString();
  requests["StreamDecode"] = StreamStep(feed.Decode({id}, TokenRange{3, 1})).SerializeAsString();
  v1::StreamStepRequest step;
  *step.mutable_step() = AsStep(feed.Decode({id}, TokenRange{3, 1}));
  requests["Step"] = step.step().SerializeAsString();
  requests["StreamStep"] = step.SerializeAsString();
  return requests;
}

TEST_F(Authentication, ASubjectsSessionsAreThereForNobodyElse) {
  GdnServerOptions options = Options();
  options.states.disk.directory = path("states");
  TestServer server(options);
  const Caller alice(server, kAlice);
  feed_.Start(alice, "mine", {0, 3});
  ASSERT_TRUE(alice.Checkpoint("mine", "c").ok());
  const std::string before = alice.State("mine");

  // Methods that take no session, or make one.
  const std::set<std::string> others = {
      "GetServerInfo", "ListModels",  "GetModel",   "CreateSession", "CreateSessions", "ListSessions",
      "ImportState",   "ShareMemory", "TraceCalls", "GetMetrics",    "Drain",          "DropPrefixes",
      "OpenLease",     "RenewLease",  "EndLease",   "ListLeases",    "ListSnapshots",  "DeleteSnapshots"};
  const auto mine = RequestsFor(feed_, "mine"), none = RequestsFor(feed_, "none");
  for (const std::string& method : Methods()) {
    if (others.count(method) > 0) continue;
    ASSERT_EQ(mine.count(method), 1u) << method << " is new: it needs a row in RequestsFor, or is one of the others";
    const std::string of_mine = Call(server.channel(), method, mine.at(method), kBob).Text();
    const std::string of_none = Call(server.channel(), method, none.at(method), kBob).Text();
    EXPECT_EQ(absl::StrReplaceAll(of_mine, {{"mine", "none"}}), of_none)
        << method << ": a foreign session and none answer alike";
    EXPECT_EQ(alice.State("mine"), before) << method;
  }
  v1::ListSessionsResponse list = Caller(server, kBob).List(10).reply;
  EXPECT_EQ(list.sessions_size(), 0);
  EXPECT_EQ(alice.List(10).reply.sessions_size(), 1);
  EXPECT_EQ(Caller(server, kRoot).List(10).reply.sessions_size(), 0) << "an admin's own";
  EXPECT_TRUE(alice.Decode(feed_.Decode({"mine"}, TokenRange{3, 1})).ok());
}

TEST_F(Authentication, ASubjectsLeasesAreThereForNobodyElse) {
  TestServer server(Options());
  const Caller alice(server, kAlice), bob(server, kBob);
  v1::OpenLeaseRequest open;
  open.set_lease_id("mine");
  const auto called = [&](const std::string& method, const auto& request, const char* who) {
    return Call(server.channel(), method, request.SerializeAsString(), who);
  };
  ASSERT_TRUE(called("OpenLease", open, kAlice).status.ok());
  v1::CreateSessionRequest create = feed_.Creation("a");
  create.set_lease("leases/mine");
  ASSERT_TRUE(alice.Create(create).ok());
  const auto answers = [&](const std::string& id) {
    std::string texts;
    v1::RenewLeaseRequest renew;
    renew.set_name("leases/" + id);
    v1::EndLeaseRequest end;
    end.set_name("leases/" + id);
    v1::CreateSessionRequest under = feed_.Creation("b");
    under.set_lease("leases/" + id);
    texts += called("RenewLease", renew, kBob).Text();
    texts += called("EndLease", end, kBob).Text();
    texts += called("CreateSession", under, kBob).Text();
    return absl::StrReplaceAll(texts, {{id, "ID"}});
  };
  EXPECT_EQ(answers("mine"), answers("none")) << "a foreign lease and none answer alike";
  EXPECT_NE(answers("mine").find("LEASE_NOT_FOUND"), std::string::npos);
  const Answer listed = called("ListLeases", v1::ListLeasesRequest(), kBob);
  ASSERT_EQ(listed.messages.size(), 1u);
  EXPECT_EQ(listed.messages[0], "") << "no lease";
  EXPECT_TRUE(alice.Get("a").ok());
  ASSERT_TRUE(called("OpenLease", open, kBob).status.ok()) << "bob may have one with the same id";
  v1::EndLeaseRequest end;
  end.set_name("leases/mine");
  ASSERT_TRUE(called("EndLease", end, kBob).status.ok());
  EXPECT_TRUE(alice.Get("a").ok()) << "and ends his own alone";
}

TEST_F(Authentication, ANewTokenKeepsTheSessionsAndAnOldOneEnds) {
  TestServer server(Options());
  const Caller old_alice(server, kAlice), new_alice(server, "Bearer alice-2");
  feed_.Start(old_alice, "a", {0, 3});
  auto context = old_alice.NewContext();
  const auto stream = server.stub().StreamDecode(context.get());
  v1::StreamDecodeResponse reply;
  ASSERT_TRUE(stream->Write(StreamStep(feed_.Decode({"a"}, TokenRange{3, 1}))) && stream->Read(&reply));

  WriteTokens("alice-2");
  server.server().security().Reload();
  EXPECT_EQ(new_alice.TokenCount("a", 0), 4) << "the session is alice's, not the token's";
  EXPECT_TRUE(RefusedAs(old_alice.Get("a"), "UNAUTHENTICATED"));
  stream->Write(StreamStep(feed_.Decode({"a"}, TokenRange{4, 1})));
  EXPECT_FALSE(stream->Read(&reply)) << "nor does a stream go on with it";
  EXPECT_EQ(ErrorInfoOf(stream->Finish()).reason(), "UNAUTHENTICATED");
  EXPECT_EQ(new_alice.TokenCount("a", 0), 4);

  WriteFile(path("tokens.json"), "nothing");
  server.server().security().Reload();
  EXPECT_EQ(new_alice.TokenCount("a", 0), 4) << "a file that is no good changes nothing";
}

TEST_F(Authentication, AClientGoesOnWithTheTokenThatItsFileHasNow) {
  TestServer server(Options());
  WriteFile(path("alice.token"), "alice-token\n");
  const auto client = Client::Connect(server.address(), {.token = {}, .token_file = path("alice.token")});
  EXPECT_EQ(client->GetServerInfo().status(), absl::OkStatus());
  WriteTokens("alice-token-2");
  server.server().security().Reload();
  EXPECT_TRUE(absl::IsUnauthenticated(client->GetServerInfo().status()));
  WriteFile(path("alice.token"), "alice-token-2\n");
  EXPECT_EQ(client->GetServerInfo().status(), absl::OkStatus());
  WriteFile(path("alice.token"), "");
  EXPECT_TRUE(absl::IsInvalidArgument(client->GetServerInfo().status())) << "it asks for nothing without a token";
}

TEST_F(Authentication, CertificatesAreLoginsAndProxiesMaySayWhose) {
  const TestCa ca("tests");
  ca.Issue({.common_name = "server", .addresses = {"127.0.0.1"}}).WriteTo(path("server"));
  ca.Issue({.common_name = "alice"}).WriteTo(path("alice"));
  ca.Issue({.common_name = "ignored", .uris = {"spiffe://tests/bob"}}).WriteTo(path("bob"));
  ca.Issue({.common_name = "proxy"}).WriteTo(path("proxy"));
  WriteFile(path("ca.crt"), ca.pem());
  GdnServerOptions options = Options();
  options.security.tls_cert = path("server.crt");
  options.security.tls_key = path("server.key");
  options.security.tls_client_ca = path("ca.crt");
  options.security.certificate_logins = true;
  options.security.trusted_proxies = {"proxy"};
  auto server = *GdnServer::Make(MakeTestBackend(/*threads=*/1), [&] {
    options.memory.device_state_bytes = 1 << 24;
    return options;
  }());
  ASSERT_TRUE(server->Start().ok());
  const auto as = [&](const std::string& name) {
    const ClientTls tls{.ca = path("ca.crt"), .certificate = path(name + ".crt"), .key = path(name + ".key")};
    return grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), *TlsCredentialsOf(tls));
  };
  const auto sessions = [&](const std::string& name, const std::string& authorization, const std::string& claim) {
    const Answer answer = Call(as(name), "ListSessions", "", authorization, claim);
    v1::ListSessionsResponse list;
    if (!answer.status.ok()) return answer.reason();
    list.ParseFromString(answer.messages.at(0));
    return absl::StrCat(list.sessions_size(), list.sessions_size() > 0 ? list.sessions(0).name() : "");
  };
  ASSERT_TRUE(Call(as("alice"), "CreateSession", feed_.Creation("of-alice").SerializeAsString(), "").status.ok());
  ASSERT_TRUE(Call(as("bob"), "CreateSession", feed_.Creation("of-bob").SerializeAsString(), "").status.ok());
  EXPECT_EQ(sessions("alice", "", ""), "1sessions/of-alice");
  EXPECT_EQ(sessions("bob", "", ""), "1sessions/of-bob");
  EXPECT_EQ(sessions("bob", kAlice, ""), "1sessions/of-alice") << "a token that is brought counts";
  EXPECT_EQ(sessions("proxy", "", "alice"), "1sessions/of-alice");
  EXPECT_EQ(sessions("proxy", "", "spiffe://tests/bob"), "1sessions/of-bob");
  EXPECT_EQ(sessions("proxy", "", ""), "UNAUTHENTICATED") << "a proxy is nobody by itself";
  EXPECT_EQ(sessions("bob", "", "alice"), "UNAUTHENTICATED") << "and nobody else may say whose";
  EXPECT_EQ(sessions("proxy", "", "nobody"), "PERMISSION_DENIED");
}

TEST_F(Authentication, TheStatusPageIsForAdmins) {
  GdnServerOptions options = Options();
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  const auto status_of = [&](const std::string& page, const std::string& authorization) {
    const std::string header = authorization.empty() ? "" : "Authorization: " + authorization + "\r\n";
    return HttpGet(*server.server().http_port(), page, header).status;
  };
  EXPECT_EQ(status_of("/statusz", ""), 403);
  EXPECT_EQ(status_of("/statusz", kAlice), 403);
  EXPECT_EQ(status_of("/statusz", "Bearer wrong"), 403);
  EXPECT_EQ(status_of("/statusz", kRoot), 200);
  EXPECT_EQ(status_of("/metrics", ""), 200) << "which names nobody";
}

TEST_F(Authentication, WhoDidWhatIsInTheAuditLogAndNoTokenIs) {
  const CapturedLog log;
  std::string text;
  {
    GdnServerOptions options = Options();
    options.states.disk.directory = path("states");
    TestServer server(options);
    const Caller alice(server, kAlice);
    feed_.Start(alice, "a", {0, 3});
    ASSERT_TRUE(alice.Fork("a", {"b"}).ok());
    ASSERT_TRUE(alice.Checkpoint("a", "c").ok() && alice.Restore("a", "c").ok() &&
                alice.DeleteCheckpoint("a", "c").ok());
    const auto file = alice.Export("a");
    v1::ResetSessionsRequest resets;
    for (const char* name : {"sessions/b", "sessions/none"}) resets.add_resets()->set_name(name);
    v1::ResetSessionsResponse reset;
    ASSERT_TRUE(server.stub().ResetSessions(alice.NewContext().get(), resets, &reset).ok());
    ASSERT_TRUE(alice.Delete("a").ok());
    v1::OpenLeaseRequest open;
    open.set_lease_id("l");
    v1::EndLeaseRequest end;
    end.set_name("leases/l");
    ASSERT_TRUE(Call(server.channel(), "OpenLease", open.SerializeAsString(), kAlice).status.ok());
    ASSERT_TRUE(Call(server.channel(), "EndLease", end.SerializeAsString(), kAlice).status.ok());
    v1::ImportStateRequest::Target target;
    target.set_session_id("i");
    *target.mutable_operator_() = SmallOperator(1);
    ASSERT_TRUE(alice.Import(target, file.reply).ok());
    EXPECT_FALSE(Caller(server, "Bearer gu3ss").Get("a").ok());
    EXPECT_FALSE(Caller(server, kBob).Get("a").ok());
  }
  text = log.text();
  for (const char* line : {"event=session_created subject=\"alice\"", "event=session_forked subject=\"alice\"",
                           "event=checkpoint_made", "event=session_restored", "event=checkpoint_ended",
                           "event=state_exported", "event=session_ended", "event=lease_ended subject=\"alice\"",
                           "lease=\"leases/l\"", "event=state_imported", "event=session_reset subject=\"alice\"",
                           "session=\"sessions/b\"", "event=login_refused reason=\"UNAUTHENTICATED\""}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " is not in\n" << text;
  }
  EXPECT_EQ(text.find("session=\"sessions/none\""), std::string::npos) << "nothing was done to it";
  for (const char* secret : {"alice-token", "bob-token", "gu3ss"}) EXPECT_EQ(text.find(secret), std::string::npos);
}

TEST_F(Authentication, OnlyAnAdminChangesWhatIsTraced) {
  TestServer server(Options());
  v1::TraceCallsRequest keep;
  keep.set_keep(10);
  EXPECT_EQ(Call(server.channel(), "TraceCalls", keep.SerializeAsString(), kAlice).reason(), "PERMISSION_DENIED");
  EXPECT_TRUE(Call(server.channel(), "TraceCalls", "", kAlice).status.ok());
  EXPECT_TRUE(Call(server.channel(), "TraceCalls", keep.SerializeAsString(), kRoot).status.ok());
}

}  // namespace
}  // namespace gdn::authentication_test
