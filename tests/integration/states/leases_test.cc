// OpenLease, RenewLease, EndLease, ListLeases: sessions end with the lease that they name, their forks and imports too,
// and no request can use another principal's lease.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "client/cpp/kept_lease.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/assert_ok.h"

namespace gdn::leases_test {
namespace {

using Stub = v1::GdnService::Stub;

Outcome<v1::OpenLeaseResponse> Open(const Caller& caller, const std::string& id, int64_t seconds = 3600) {
  v1::OpenLeaseRequest request;
  request.set_lease_id(id);
  request.mutable_grace()->set_seconds(seconds);
  return Call(caller, &Stub::OpenLease, request);
}

Outcome<v1::RenewLeaseResponse> Renew(const Caller& caller, const std::string& name) {
  v1::RenewLeaseRequest request;
  request.set_name(name);
  return Call(caller, &Stub::RenewLease, request);
}

Outcome<v1::EndLeaseResponse> End(const Caller& caller, const std::string& name) {
  v1::EndLeaseRequest request;
  request.set_name(name);
  return Call(caller, &Stub::EndLease, request);
}

Outcome<v1::ListLeasesResponse> List(const Caller& caller, int page_size = 0, const std::string& token = "") {
  v1::ListLeasesRequest request;
  request.set_page_size(page_size);
  request.set_page_token(token);
  return Call(caller, &Stub::ListLeases, request);
}

class LeasesTest : public ::testing::Test {
 protected:
  v1::CreateSessionRequest Creation(const std::string& id, const std::string& lease) const {
    v1::CreateSessionRequest request = feed_.Creation(id);
    request.set_lease(lease);
    return request;
  }
  static size_t Sessions(const Caller& caller) { return static_cast<size_t>(caller.List(1000).reply.sessions_size()); }

  const TokenFeed feed_ = TokenFeed::Operator();
  TestServer server_;
  const Caller caller_{server_};
};

TEST_F(LeasesTest, ALeaseIsOpenedFoundRenewedListedAndEnded) {
  ASSERT_REPLY(const auto opened, Open(caller_, "engine", 100));
  EXPECT_EQ(opened.lease().name(), "leases/engine");
  EXPECT_EQ(opened.lease().grace().seconds(), 100);
  ASSERT_REPLY(const auto again, Open(caller_, "engine", 100));
  EXPECT_EQ(again.lease().name(), "leases/engine");
  EXPECT_TRUE(RefusedAs(Open(caller_, "engine", 101), "LEASE_EXISTS",
                        {{"lease", "leases/engine"}, {"found", "1m40s"}, {"expected", "1m41s"}}));
  ASSERT_REPLY(const auto unnamed, Call(caller_, &Stub::OpenLease, v1::OpenLeaseRequest()));
  EXPECT_EQ(unnamed.lease().name().size(), std::string("leases/").size() + 32);
  EXPECT_EQ(unnamed.lease().grace().seconds(), 60) << "the default";
  ASSERT_TRUE(End(caller_, unnamed.lease().name()).ok());

  ASSERT_REPLY(const auto session, caller_.Create(Creation("a", "leases/engine")));
  EXPECT_EQ(session.lease(), "leases/engine");
  ASSERT_TRUE(feed_.Create(caller_, "free").ok());
  EXPECT_EQ(caller_.Get("free").reply.lease(), "");
  ASSERT_REPLY(const auto renewed, Renew(caller_, "leases/engine"));
  EXPECT_EQ(renewed.lease().sessions(), 1);
  EXPECT_LE(renewed.lease().time_left().seconds(), 100);
  EXPECT_GE(renewed.lease().time_left().seconds(), 50);
  ASSERT_REPLY(const auto listed, List(caller_));
  ASSERT_EQ(listed.leases_size(), 1);
  EXPECT_EQ(listed.leases(0).name(), "leases/engine");
  EXPECT_EQ(listed.leases(0).sessions(), 1);

  ASSERT_REPLY(const auto ended, End(caller_, "leases/engine"));
  EXPECT_EQ(ended.ended_sessions(), 1);
  EXPECT_EQ(caller_.Get("a").reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(caller_.Get("free").ok());
  EXPECT_EQ(List(caller_).reply.leases_size(), 0);
  EXPECT_TRUE(RefusedAs(Renew(caller_, "leases/engine"), "LEASE_NOT_FOUND", {{"lease", "leases/engine"}}));
  EXPECT_TRUE(RefusedAs(End(caller_, "leases/engine"), "LEASE_NOT_FOUND"));
}

TEST_F(LeasesTest, BadRequestsAreRefusedAndNothingIsMade) {
  const auto with_grace = [&](int64_t seconds, int32_t nanos) {
    v1::OpenLeaseRequest request;
    request.mutable_grace()->set_seconds(seconds);
    request.mutable_grace()->set_nanos(nanos);
    return Call(caller_, &Stub::OpenLease, request);
  };
  for (const auto& [seconds, nanos] : std::vector<std::pair<int64_t, int32_t>>{
           {0, 0}, {-1, 0}, {0, 999'999'999}, {7 * 24 * 3600, 1}, {INT64_MAX, 0}, {INT64_MIN, -1}}) {
    EXPECT_TRUE(RefusedAs(with_grace(seconds, nanos), "INVALID_SPEC", {{"field", "grace"}})) << seconds;
  }
  EXPECT_TRUE(RefusedAs(Open(caller_, "a b"), "INVALID_NAME", {{"field", "lease_id"}}));
  EXPECT_TRUE(RefusedAs(Open(caller_, std::string(129, 'x')), "INVALID_NAME"));
  for (const char* const name : {"", "leases/", "engine", "sessions/engine", "leases/a/b"}) {
    EXPECT_TRUE(RefusedAs(Renew(caller_, name), "INVALID_NAME", {{"field", "lease"}})) << name;
    EXPECT_TRUE(RefusedAs(End(caller_, name), "INVALID_NAME", {{"field", "lease"}})) << name;
  }
  EXPECT_TRUE(RefusedAs(List(caller_, -1), "INVALID_SPEC", {{"field", "page_size"}}));
  for (const char* const token : {"after:a", "lease-after:", "lease-after:a b", "x"}) {
    EXPECT_TRUE(RefusedAs(List(caller_, 1, token), "INVALID_PAGE_TOKEN")) << token;
  }
  EXPECT_EQ(List(caller_).reply.leases_size(), 0);
  EXPECT_TRUE(RefusedAs(caller_.Create(Creation("a", "engine")), "INVALID_NAME", {{"field", "lease"}}));
  EXPECT_TRUE(RefusedAs(caller_.Create(Creation("a", "leases/engine")), "LEASE_NOT_FOUND"));
  EXPECT_EQ(Sessions(caller_), 0u);
}

TEST_F(LeasesTest, PagesListAllLeasesOnce) {
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(Open(caller_, "l" + std::to_string(i)).ok());
  std::string names, token;
  do {
    ASSERT_REPLY(const auto page, List(caller_, 3, token));
    EXPECT_LE(page.leases_size(), 3);
    for (const v1::Lease& lease : page.leases()) names += lease.name() + " ";
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_EQ(names, "leases/l0 leases/l1 leases/l2 leases/l3 leases/l4 leases/l5 leases/l6 ");
}

TEST_F(LeasesTest, ACreationIsIdempotentWithItsLease) {
  ASSERT_TRUE(Open(caller_, "a").ok());
  ASSERT_TRUE(Open(caller_, "b").ok());
  ASSERT_TRUE(caller_.Create(Creation("s", "leases/a")).ok());
  EXPECT_TRUE(caller_.Create(Creation("s", "leases/a")).ok());
  EXPECT_TRUE(RefusedAs(caller_.Create(Creation("s", "leases/b")), "SESSION_EXISTS"));
  EXPECT_TRUE(RefusedAs(caller_.Create(Creation("s", "")), "SESSION_EXISTS"));
}

TEST_F(LeasesTest, ForksHaveTheirParentsLeaseUnlessTheyNameOne) {
  ASSERT_TRUE(Open(caller_, "a").ok());
  ASSERT_TRUE(Open(caller_, "b").ok());
  ASSERT_TRUE(caller_.Create(Creation("parent", "leases/a")).ok());
  const auto fork = [&](const std::string& child, const char* lease) {
    v1::ForkSessionRequest request = ForkOf("parent", {child});
    if (lease != nullptr) request.set_lease(lease);
    return caller_.Fork(request);
  };
  ASSERT_REPLY(const auto same, fork("same", nullptr));
  EXPECT_EQ(same.sessions(0).lease(), "leases/a");
  ASSERT_REPLY(const auto other, fork("other", "leases/b"));
  EXPECT_EQ(other.sessions(0).lease(), "leases/b");
  ASSERT_REPLY(const auto none, fork("none", ""));
  EXPECT_EQ(none.sessions(0).lease(), "");
  EXPECT_TRUE(RefusedAs(fork("nobody", "leases/c"), "LEASE_NOT_FOUND"));
  EXPECT_TRUE(RefusedAs(fork("nobody", "c"), "INVALID_NAME"));
  ASSERT_REPLY(const auto ended, End(caller_, "leases/a"));
  EXPECT_EQ(ended.ended_sessions(), 2);
  EXPECT_TRUE(caller_.Get("other").ok() && caller_.Get("none").ok());
  EXPECT_EQ(Sessions(caller_), 2u);
}

TEST_F(LeasesTest, SnapshotsEndWithTheLeaseOfTheirSessionAndTheirSessionsWithTheOneThatTheyName) {
  for (const char* lease : {"engine", "other"}) ASSERT_TRUE(Open(caller_, lease).ok());
  ASSERT_TRUE(caller_.Create(Creation("a", "leases/engine")).ok());
  ASSERT_TRUE(feed_.Create(caller_, "free").ok());
  for (const char* id : {"a", "free"}) {
    v1::SnapshotSessionRequest take;
    take.set_session(std::string("sessions/") + id);
    take.set_key(std::string("of-") + id);
    ASSERT_TRUE(Call(caller_, &Stub::SnapshotSession, take).ok());
  }
  v1::CreateSessionRequest from;
  from.set_session_id("b");
  from.set_snapshot("of-a");
  from.set_lease("leases/none");
  EXPECT_TRUE(RefusedAs(caller_.Create(from), "LEASE_NOT_FOUND", {{"lease", "leases/none"}}));
  from.set_lease("leases/other");
  ASSERT_REPLY(const auto made, caller_.Create(from));
  EXPECT_EQ(made.lease(), "leases/other");
  ASSERT_TRUE(End(caller_, "leases/engine").ok());
  ASSERT_REPLY(const auto left, Call(caller_, &Stub::ListSnapshots, v1::ListSnapshotsRequest()));
  ASSERT_EQ(left.snapshots_size(), 1);
  EXPECT_EQ(left.snapshots(0).key(), "of-free");
  EXPECT_EQ(left.lost_size(), 0) << "its owner has ended it";
  EXPECT_EQ(caller_.Get("a").reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(caller_.Get("b").ok());
  ASSERT_TRUE(End(caller_, "leases/other").ok());
  EXPECT_EQ(caller_.Get("b").reason(), "SESSION_NOT_FOUND");
}

TEST_F(LeasesTest, AnImportedSessionHasTheLeaseOfItsTarget) {
  ASSERT_TRUE(Open(caller_, "a").ok());
  ASSERT_TRUE(Open(caller_, "b").ok());
  ASSERT_TRUE(caller_.Create(Creation("from", "leases/b")).ok());
  ASSERT_TRUE(caller_.Prefill(feed_.Prefill("from", {0, 3})).ok());
  ASSERT_REPLY(const std::string file, caller_.Export("from"));
  v1::ImportStateRequest::Target target;
  *target.mutable_operator_() = feed_.Creation("x").operator_();
  target.set_session_id("to");
  ASSERT_REPLY(const auto free, caller_.Import(target, file));
  EXPECT_EQ(free.lease(), "") << "a file brings no lease";
  ASSERT_TRUE(caller_.Delete("to").ok());
  target.set_lease("leases/nobody");
  EXPECT_TRUE(RefusedAs(caller_.Import(target, file), "LEASE_NOT_FOUND"));
  target.set_lease("nobody");
  EXPECT_TRUE(RefusedAs(caller_.Import(target, file), "INVALID_NAME"));
  target.set_lease("leases/a");
  ASSERT_REPLY(const auto imported, caller_.Import(target, file));
  EXPECT_EQ(imported.lease(), "leases/a");
  ASSERT_REPLY(const auto ended, End(caller_, "leases/a"));
  EXPECT_EQ(ended.ended_sessions(), 1);
  EXPECT_EQ(caller_.Get("to").reason(), "SESSION_NOT_FOUND");
}

TEST_F(LeasesTest, SessionsEndAGraceAfterTheLastSignOfLife) {
  ASSERT_TRUE(Open(caller_, "a", 1).ok());
  ASSERT_TRUE(caller_.Create(Creation("s", "leases/a")).ok());
  ASSERT_TRUE(feed_.Create(caller_, "free").ok());
  // Steps are no sign of life.
  EXPECT_TRUE(WaitUntil(
      [&] {
        return caller_.Prefill(feed_.Prefill("s", {0, 1})).reason() == "SESSION_NOT_FOUND";
      },
      "the lease's sessions to end"));
  EXPECT_TRUE(RefusedAs(Renew(caller_, "leases/a"), "LEASE_NOT_FOUND"));
  EXPECT_TRUE(caller_.Get("free").ok());
  EXPECT_EQ(caller_.Info().reply.expired_sessions(), 1);
  EXPECT_EQ(List(caller_).reply.leases_size(), 0);
}

TEST_F(LeasesTest, SessionsLiveWhileRenewalsCome) {
  // A machine may stop this test for longer than the grace. Such a try says nothing, and the next one counts.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const std::string id = "l" + std::to_string(attempt);
    absl::Time last = absl::Now();
    ASSERT_TRUE(Open(caller_, id, 1).ok());
    ASSERT_TRUE(caller_.Create(Creation("s" + id, "leases/" + id)).ok());
    absl::Duration longest;
    for (const absl::Time begin = absl::Now(); absl::Now() - begin < absl::Milliseconds(2500);) {
      const absl::Time sent = absl::Now();
      Renew(caller_, "leases/" + id);
      longest = std::max(longest, absl::Now() - last);
      last = sent;
      absl::SleepFor(absl::Milliseconds(20));
    }
    const bool lives = caller_.Get("s" + id).ok();
    longest = std::max(longest, absl::Now() - last);
    if (longest >= absl::Seconds(1)) continue;
    EXPECT_TRUE(lives) << "the longest time between two signs of life was " << longest;
    return;
  }
  GTEST_SKIP() << "this machine was never fast enough";
}

TEST_F(LeasesTest, AKeptLeaseRenewsItselfAndEndsItsSessions) {
  const auto client = Client::Connect(server_.address());
  v1::OpenLeaseRequest open;
  open.mutable_grace()->set_seconds(5);
  GDN_ASSERT_OK_AND_ASSIGN(auto lease, KeptLease::Open(*client, open));
  EXPECT_EQ(lease->grace(), absl::Seconds(5));
  ASSERT_TRUE(caller_.Create(Creation("s", lease->name())).ok());
  // The time left grows only by a renewal.
  int64_t before_ns = INT64_MAX;
  bool grew = false;
  EXPECT_TRUE(WaitUntil(
      [&] {
        const auto leases = client->ListLeases();
        if (!leases.ok() || leases->empty()) return true;
        const int64_t left_ns = (*leases)[0].time_left().seconds() * 1'000'000'000 + (*leases)[0].time_left().nanos();
        grew = grew || left_ns > before_ns;
        before_ns = left_ns;
        return grew;
      },
      "a renewal"));
  EXPECT_TRUE(grew);
  EXPECT_TRUE(lease->status().ok()) << lease->status();
  GDN_ASSERT_OK_AND_ASSIGN(const int64_t ended, lease->End());
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(caller_.Get("s").reason(), "SESSION_NOT_FOUND");

  GDN_ASSERT_OK_AND_ASSIGN(auto lost, KeptLease::Open(*client, open));
  ASSERT_TRUE(client->EndLease(lost->name()).ok());
  EXPECT_TRUE(WaitUntil([&] { return absl::IsNotFound(lost->status()); }, "the renewal to learn of the end"));
}

TEST_F(LeasesTest, ADurableSessionComesBackWithItsLeaseWhoseGraceBeginsAnew) {
  const TempFolder folder;
  const GdnServerOptions options{.states = {.disk = {.directory = folder.path()}}};
  auto server = std::make_unique<TestServer>(options);
  const auto caller = std::make_unique<Caller>(*server);
  ASSERT_TRUE(Open(*caller, "long", 3600).ok());
  ASSERT_TRUE(Open(*caller, "short", 1).ok());
  ASSERT_TRUE(caller->Create(Creation("stays", "leases/long")).ok());
  const auto made = caller->Create(Creation("goes", "leases/short"));
  const bool goes = made.ok() && caller->Checkpoint("goes").ok();  // on a slow machine it has gone by now
  ASSERT_TRUE(caller->Prefill(feed_.Prefill("stays", {0, 3})).ok());
  ASSERT_TRUE(caller->Checkpoint("stays").ok());
  server = nullptr;  // as killed
  server = std::make_unique<TestServer>(options);
  const Caller again(*server);
  if (goes && again.Get("goes").ok()) {
    EXPECT_EQ(List(again).reply.leases_size(), 2);
  }
  EXPECT_TRUE(WaitUntil([&] { return again.Get("goes").reason() == "SESSION_NOT_FOUND"; }, "the short lease to end"));
  ASSERT_REPLY(const auto stays, again.Get("stays"));
  EXPECT_EQ(stays.lease(), "leases/long");
  ASSERT_REPLY(const auto renewed, Renew(again, "leases/long"));
  EXPECT_EQ(renewed.lease().grace().seconds(), 3600);
  EXPECT_EQ(renewed.lease().sessions(), 1);
  EXPECT_TRUE(server->Drain());
  server = nullptr;
  server = std::make_unique<TestServer>(options);
  const Caller third(*server);
  EXPECT_EQ(third.Get("stays").reply.lease(), "leases/long") << "after an orderly end too";
  ASSERT_REPLY(const auto ended, End(third, "leases/long"));
  EXPECT_EQ(ended.ended_sessions(), 1);
  server = nullptr;
  server = std::make_unique<TestServer>(options);
  EXPECT_EQ(Sessions(Caller(*server)), 0u) << "it ended for good";
}

}  // namespace
}  // namespace gdn::leases_test
