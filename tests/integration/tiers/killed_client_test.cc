// A client process is killed: its sessions end within the grace of its lease, also if the server is killed and
// restarted in between, and if several servers share the sessions.
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include "tools/common/child_process.h"
#include "tools/common/restartable_server.h"

namespace gdn::killed_client_test {
namespace {

constexpr size_t kSessions = 5;  // and one fork

class KilledClient : public ::testing::Test {
 protected:
  // Starts a client with a lease, and waits until it has its sessions.
  void StartClient(const std::string& target, int grace_s = 2) {
    const std::string ready = folder_.path() + "/client.port";
    auto started =
        ChildProcess::Start({GDN_LEASE_HOLDER, target, ready, std::to_string(grace_s), std::to_string(kSessions)}, "");
    ASSERT_TRUE(started.ok()) << started.status();
    client_ = std::make_unique<ChildProcess>(*std::move(started));
    ASSERT_TRUE(client_->WaitForPort(ready, absl::Minutes(1)).ok());
  }
  static std::vector<std::string> Sessions(Client& client) {
    std::vector<std::string> names;
    const auto listed = client.ListSessions();
    EXPECT_TRUE(listed.ok()) << listed.status();
    if (!listed.ok()) return {"?"};
    for (const v1::Session& session : *listed) names.push_back(session.name());
    return names;
  }
  // Waits until no session and no lease is left.
  void ExpectNothingLeft(Client& client) {
    EXPECT_TRUE(WaitUntil([&] { return Sessions(client).empty(); }, "the sessions to end"));
    const auto leases = client.ListLeases();
    ASSERT_TRUE(leases.ok()) << leases.status();
    EXPECT_TRUE(leases->empty());
    // A session counts until its states are erased everywhere.
    const auto erased = [&] {
      const auto info = client.GetServerInfo();
      return info.ok() && info->session_count() == 0;
    };
    EXPECT_TRUE(WaitUntil(erased, "the states to be erased"));
  }

  const TempFolder folder_;
  std::unique_ptr<ChildProcess> client_;
};

TEST_F(KilledClient, NothingIsLeftOfItsSessions) {
  RestartableServer server(GDN_SERVER, {"--backend=null"}, folder_.path(), "server");
  ASSERT_TRUE(server.Start().ok());
  ASSERT_NO_FATAL_FAILURE(StartClient(server.target()));
  const auto client = Client::Connect(server.target());
  EXPECT_EQ(Sessions(*client).size(), kSessions + 1);
  client_->End(SIGKILL);
  ExpectNothingLeft(*client);
}

TEST_F(KilledClient, NothingIsLeftAfterARestartOfTheServer) {
  RestartableServer server(GDN_SERVER, {"--backend=null", "--disk-dir=" + folder_.path() + "/states"}, folder_.path(),
                           "server");
  ASSERT_TRUE(server.Start().ok());
  ASSERT_NO_FATAL_FAILURE(StartClient(server.target()));
  server.Kill();  // while the sessions are there, because the client has renewed its lease until now
  client_->End(SIGKILL);
  ASSERT_TRUE(server.Start().ok());
  const auto client = Client::Connect(server.target());
  const auto info = client->GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GE(info->recovered_sessions(), static_cast<int64_t>(kSessions));
  ExpectNothingLeft(*client);
  server.Kill();
  ASSERT_TRUE(server.Start().ok());
  // The first call may meet the connection to the killed server.
  auto after = client->GetServerInfo();
  ASSERT_TRUE(WaitUntil([&] { return after.ok() || (after = client->GetServerInfo()).ok(); }, "the server to answer"));
  EXPECT_EQ(after->recovered_sessions(), 0) << "they ended for good";
}

TEST_F(KilledClient, ALivingClientKeepsItsSessionsOverARestartOfTheServer) {
  RestartableServer server(GDN_SERVER, {"--backend=null", "--disk-dir=" + folder_.path() + "/states"}, folder_.path(),
                           "server");
  ASSERT_TRUE(server.Start().ok());
  ASSERT_NO_FATAL_FAILURE(StartClient(server.target(), /*grace_s=*/60));
  server.Kill();
  ASSERT_TRUE(server.Start().ok());
  const auto client = Client::Connect(server.target());
  EXPECT_GE(Sessions(*client).size(), kSessions) << "the fork was never stored";
  // The client renews the lease at the new server, which knows it from the sessions.
  const auto leases = client->ListLeases();
  ASSERT_TRUE(leases.ok()) << leases.status();
  ASSERT_EQ(leases->size(), 1u);
  EXPECT_EQ((*leases)[0].name(), "leases/engine");
}

}  // namespace
}  // namespace gdn::killed_client_test
