// An admin may see, delete and move anybody's sessions, read the metrics, and drain the server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/threads/stop_signal.h"
#include "tests/integration/support/captured_log.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_logins.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/support/http_client.h"

namespace gdn::admin_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// "OWNER ID" of each.
std::vector<std::string> Owners(const v1::ListSessionsResponse& list) {
  std::vector<std::string> owners;
  for (const v1::Session& session : list.sessions()) owners.push_back(session.owner() + " " + session.name());
  return owners;
}

class Admin : public TokenLogins {
 protected:
  GdnServerOptions OnDisk() const {
    GdnServerOptions options = Options();
    options.states.disk.directory = path("states");
    return options;
  }
};

TEST_F(Admin, SeesWhoseSessionsThereAre) {
  TestServer server(Options());
  const Caller alice(server, kAlice), bob(server, kBob), root(server, kRoot);
  for (const char* id : {"a", "b"}) feed_.Start(alice, id, {0, 3});
  feed_.Start(bob, "a", {0, 3});
  EXPECT_THAT(Owners(root.ListAll(10).reply),
              UnorderedElementsAre("alice sessions/a", "alice sessions/b", "bob sessions/a"));
  EXPECT_TRUE(RefusedAs(alice.ListAll(10), "PERMISSION_DENIED"));
  EXPECT_EQ(alice.ListAll(10).reply.sessions_size(), 0);
  EXPECT_THAT(Owners(alice.List(10).reply), ElementsAre(" sessions/a", " sessions/b")) << "of one's own nobody is told";

  // By pages, which are of all or of one's own.
  std::vector<std::string> paged;
  std::string token;
  do {
    ASSERT_REPLY(const auto page, root.ListAll(1, token));
    ASSERT_EQ(page.sessions_size(), 1);
    paged.push_back(Owners(page).front());
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_EQ(paged, Owners(root.ListAll(10).reply));
  const std::string of_all = root.ListAll(1).reply.next_page_token(), of_alice = alice.List(1).reply.next_page_token();
  EXPECT_TRUE(RefusedAs(root.List(1, of_all), "INVALID_PAGE_TOKEN"));
  EXPECT_TRUE(RefusedAs(root.ListAll(1, of_alice), "INVALID_PAGE_TOKEN"));
  for (const char* bad : {"all-after:", "all-after:x", "all-after:x/", "all-after:x/a b"}) {
    EXPECT_TRUE(RefusedAs(root.ListAll(1, bad), "INVALID_PAGE_TOKEN")) << bad;
  }
}

TEST_F(Admin, IsNobodyWhereNobodyHasToLogIn) {
  TestServer server;
  const Caller anybody(server);
  feed_.Start(anybody, "a", {0, 3});
  EXPECT_TRUE(RefusedAs(anybody.ListAll(10), "PERMISSION_DENIED"));
  EXPECT_TRUE(RefusedAs(anybody.Delete("a", "~"), "PERMISSION_DENIED"));
  EXPECT_TRUE(RefusedAs(anybody.Drain(false), "PERMISSION_DENIED"));
  EXPECT_THAT(anybody.Metrics().reply.text(), HasSubstr("gdn_")) << "as /metrics, which names nobody";
  EXPECT_TRUE(anybody.Get("a").ok());
}

TEST_F(Admin, KnowsOwnersAfterARestartAndCanEndWhatHasNoneAnyMore) {
  {
    WriteTokens("alice-token", "," + TokenEntry("carol", "carol-token"));
    TestServer server(OnDisk());
    feed_.Start(Caller(server, kAlice), "a", {0, 3});
    feed_.Start(Caller(server, "Bearer carol-token"), "c", {0, 3});
    ASSERT_TRUE(server.Drain());
  }
  WriteTokens();
  TestServer server(OnDisk());
  const Caller root(server, kRoot);
  ASSERT_REPLY(const auto list, root.ListAll(10));
  std::map<std::string, std::string> owners;  // by name
  for (const v1::Session& session : list.sessions()) owners[session.name()] = session.owner();
  EXPECT_EQ(owners["sessions/a"], "alice") << "who has not called yet";
  const std::string carol = owners["sessions/c"];
  EXPECT_THAT(carol, StartsWith("~"));
  EXPECT_EQ(carol.size(), 65u) << carol;
  EXPECT_TRUE(root.Evict("c", v1::STATE_TIER_DISK, carol).ok());
  EXPECT_TRUE(root.Delete("c", carol).ok());
  EXPECT_THAT(Owners(root.ListAll(10).reply), ElementsAre("alice sessions/a"));
}

TEST_F(Admin, EndsAndMovesAnybodysSessionsAndTheAuditLogHasIt) {
  const CapturedLog log;
  {
    TestServer server(OnDisk());
    const Caller alice(server, kAlice), bob(server, kBob), root(server, kRoot);
    feed_.Start(alice, "mine", {0, 3});
    feed_.Start(root, "mine", {0, 3});
    const std::string before = alice.State("mine");
    for (const char* id : {"mine", "none"}) {
      for (const char* subject : {"alice", "bob", "stranger"}) {
        EXPECT_TRUE(RefusedAs(bob.Delete(id, subject), "PERMISSION_DENIED")) << id << " of " << subject;
        EXPECT_TRUE(RefusedAs(bob.Evict(id, v1::STATE_TIER_DISK, subject), "PERMISSION_DENIED")) << id;
      }
    }
    EXPECT_TRUE(RefusedAs(root.Delete("mine", "bob"), "SESSION_NOT_FOUND"));
    EXPECT_TRUE(RefusedAs(root.Evict("mine", v1::STATE_TIER_DISK, "stranger"), "SESSION_NOT_FOUND"));
    EXPECT_EQ(alice.State("mine"), before);

    ASSERT_REPLY(const v1::Session moved, root.Evict("mine", v1::STATE_TIER_DISK, "alice"));
    EXPECT_EQ(moved.owner(), "alice");
    EXPECT_EQ(moved.tier(), v1::STATE_TIER_DISK);
    EXPECT_EQ(root.Get("mine").reply.tier(), v1::STATE_TIER_DEVICE) << "its own of that name";
    EXPECT_EQ(alice.State("mine"), before);
    ASSERT_REPLY(const v1::Session own, alice.Evict("mine"));
    EXPECT_EQ(own.owner(), "");
    EXPECT_TRUE(alice.Decode(feed_.Decode({"mine"}, TokenRange{3, 1})).ok());

    EXPECT_TRUE(root.Delete("mine", "alice").ok());
    EXPECT_TRUE(RefusedAs(alice.Get("mine"), "SESSION_NOT_FOUND"));
    EXPECT_EQ(root.TokenCount("mine", 0), 3);
    EXPECT_TRUE(root.ListAll(10).ok() && root.Metrics().ok());
  }
  const std::string text = log.text();
  for (const char* line : {"event=session_evicted subject=\"root\"", "session=\"sessions/mine\" owner=\"alice\"",
                           "event=session_ended subject=\"root\"", "event=session_evicted subject=\"alice\"",
                           "event=sessions_listed subject=\"root\"", "event=metrics_read subject=\"root\""}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("event=session_ended subject=\"bob\""))) << "what is refused is not done";
}

TEST_F(Admin, ReadsWhatMetricsAnswers) {
  GdnServerOptions options = Options();
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  const Caller alice(server, kAlice), root(server, kRoot);
  feed_.Start(alice, "chat-of-alice", {0, 3});
  EXPECT_TRUE(RefusedAs(alice.Metrics(), "PERMISSION_DENIED"));
  ASSERT_TRUE(root.Metrics().ok());
  ASSERT_REPLY(const auto metrics, root.Metrics());  // the call before is in it
  const auto series = [](const std::string& text) {
    std::set<std::string> names;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const size_t space = line[0] == '#' ? line.size() : line.rfind(' ');
      if (space == std::string::npos) ADD_FAILURE() << "no sample: " << line;
      names.insert(line.substr(0, space));
    }
    return names;
  };
  EXPECT_EQ(series(metrics.text()), series(HttpGet(*server.server().http_port(), "/metrics").body));
  EXPECT_THAT(metrics.text(), HasSubstr("method=\"GetMetrics\""));
  for (const char* name : {"alice", "root", "chat-of", "Bearer"}) {
    EXPECT_THAT(metrics.text(), Not(HasSubstr(name))) << "names nobody";
  }
}

// A server that ends when an admin wants it to, as the program does.
class AdminsEnd : public Admin {
 protected:
  GdnServerOptions Ending() {
    GdnServerOptions options = OnDisk();
    options.on_drain_request = [this] { requested_.Give(); };
    return options;
  }
  // The main thread of the program.
  std::thread End(TestServer& server) {
    return std::thread([this, &server] {
      EXPECT_TRUE(requested_.GivenWithin(absl::Minutes(5)));
      drained_ = server.server().Drain(absl::Minutes(5));
    });
  }
  StopSignal requested_;
  bool drained_ = false;
};

TEST_F(AdminsEnd, IsSeenFromItsBeginningToWhereAllIsDurable) {
  TestServer server(Ending());
  const Caller alice(server, kAlice), root(server, kRoot);
  feed_.Start(alice, "a", {0, 3});
  feed_.Start(alice, "b", {0, 3});
  EXPECT_TRUE(RefusedAs(alice.Drain(false), "PERMISSION_DENIED"));
  EXPECT_FALSE(alice.Info().reply.has_drain());
  EXPECT_FALSE(requested_.GivenWithin(absl::ZeroDuration()));

  EngineBlocker engine(server.batcher());
  std::thread step([&] { EXPECT_TRUE(alice.Decode(feed_.Decode({"a"}, TokenRange{3, 1})).ok()) << "it was accepted"; });
  ASSERT_TRUE(WaitForQueuedSteps(server, 1));
  ASSERT_REPLY(const v1::DrainProgress begun, root.Drain(/*wait=*/false));
  EXPECT_TRUE(begun.has_begin_time());
  EXPECT_FALSE(begun.ended());
  std::thread end = End(server);
  std::thread wait([&] {
    ASSERT_REPLY(const v1::DrainProgress ended, root.Drain(/*wait=*/true));
    EXPECT_TRUE(ended.ended());
    EXPECT_EQ(ended.sessions(), 2);
    EXPECT_EQ(ended.durable_sessions(), 2);
    EXPECT_EQ(ended.failed_sessions() + ended.waiting_steps() + ended.open_transfers(), 0);
  });
  EXPECT_TRUE(WaitUntil([&] { return server.server().engines().draining(); }, "the drain to begin"));
  ASSERT_REPLY(const auto info, alice.Info());
  EXPECT_EQ(info.drain().waiting_steps(), 1) << "everybody may see it";
  EXPECT_EQ(info.drain().begin_time().seconds(), begun.begin_time().seconds());
  EXPECT_FALSE(info.drain().ended());
  EXPECT_TRUE(RefusedAs(alice.Decode(feed_.Decode({"b"}, TokenRange{3, 1})), "SERVER_DRAINING"));
  engine.Release();
  for (std::thread* thread : {&step, &wait, &end}) thread->join();
  EXPECT_TRUE(drained_);
}

TEST_F(AdminsEnd, TellsOfSessionsThatAreNotDurable) {
  TestServer server(Ending());
  feed_.Start(Caller(server, kAlice), "a", {0, 3});
  std::filesystem::remove_all(path("states/sessions"));
  std::ofstream(path("states/sessions")) << "x";  // so that root fails too
  std::thread end = End(server);
  ASSERT_REPLY(const v1::DrainProgress ended, Caller(server, kRoot).Drain(/*wait=*/true));
  EXPECT_TRUE(ended.ended());
  EXPECT_EQ(ended.failed_sessions(), 1);
  EXPECT_EQ(ended.durable_sessions(), 0);
  end.join();
  EXPECT_FALSE(drained_);
}

TEST_F(AdminsEnd, IsWaitedForByNobodyOnceTheServerStops) {
  TestServer server(Ending());
  std::thread wait([&] { static_cast<void>(Caller(server, kRoot).Drain(/*wait=*/true)); });
  ASSERT_TRUE(requested_.GivenWithin(absl::Minutes(5)));
  server.server().rpc().Stop(absl::ZeroDuration());
  wait.join();
  EXPECT_FALSE(server.server().has_stuck_calls());
}

}  // namespace
}  // namespace gdn::admin_test
