// A password and TLS between the server and Redis, by the files of deploy/stunnel and processes that are killed.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"
#include "tools/common/child_process.h"

namespace gdn::redis_tls_test {
namespace {

constexpr char kStunnel[] = "/usr/bin/stunnel4";
constexpr TokenRange kPrompt = {0, 7};

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A socket on the loopback address: bound to a port, or connected to it. Negative where that cannot be.
int LoopbackSocket(int port, bool connected) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (fd >= 0 && (connected ? connect(fd, to, sizeof(address)) : bind(fd, to, sizeof(address))) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

int FreePort() {
  const int fd = LoopbackSocket(0, /*connected=*/false);
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

bool Listens(int port) {
  const int fd = LoopbackSocket(port, /*connected=*/true);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// A stunnel that runs, and where.
struct Tunnel {
  int port = 0;
  std::unique_ptr<ChildProcess> process = nullptr;
};

class RedisTls : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    if (access(kStunnel, X_OK) != 0) GTEST_SKIP() << "stunnel4 is not installed (scripts/setup.sh --checks)";
    redis_.Start();
    const TestCa ca("redis CA");
    const TestCa other("another CA");
    ca.Issue({.common_name = "redis", .dns = {"redis.example"}}).WriteTo(Path("redis"));
    ca.Issue({.common_name = "gdn"}).WriteTo(Path("redis-client"));
    other.Issue({.common_name = "gdn"}).WriteTo(Path("stranger"));
    std::ofstream(Path("redis-ca.crt")) << ca.pem();
    SetPassword("s3cret");
    near_ = Run("redis-server.conf", /*port=*/0, redis_.port());
    far_ = Run("redis-client.conf", /*port=*/0, near_.port);
    for (const char* id : {"a", "b"}) feed_.Start(steady_, id, kPrompt, 2);
  }

  void TearDown() override {
    if (!HasFailure()) return;
    for (const char* log : {"redis-server.conf.log", "redis-client.conf.log"}) std::cout << FileText(Path(log));
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void SetPassword(const std::string& password) const { std::ofstream(Path("password")) << password << "\n"; }

  // By the file as it is in deploy/, but for ports and paths. `port` 0: a free one; it may be taken before stunnel has
  // it, so there are some tries.
  Tunnel Run(const std::string& name, int port, int connect, const std::string& client = "redis-client") const {
    const std::string config = Path(absl::StrCat(client, ".", name));
    const std::string log = Path(absl::StrCat(name, ".log"));
    absl::Status up;
    for (int tries = 0; tries < 5; ++tries) {
      const int accept = port != 0 ? port : FreePort();
      const std::string here = absl::StrCat("127.0.0.1:", accept), there = absl::StrCat("127.0.0.1:", connect);
      std::ofstream(config) << absl::StrReplaceAll(FileText(absl::StrCat(GDN_SOURCE_DIR, "/deploy/stunnel/", name)),
                                                   {{"0.0.0.0:6390", here},
                                                    {"127.0.0.1:6379", there},
                                                    {"127.0.0.1:6380", here},
                                                    {"redis.example:6390", there},
                                                    {"/etc/gdn/redis-client", Path(client)},
                                                    {"/etc/gdn/", folder_.path() + "/"},
                                                    {"/etc/stunnel/", folder_.path() + "/"}});
      auto process = ChildProcess::Start({kStunnel, config}, log);
      EXPECT_TRUE(process.ok()) << process.status();
      if (!process.ok()) return {};
      up = process->WaitUntil([&] { return Listens(accept); }, absl::Minutes(1));
      if (up.ok()) return {.port = accept, .process = std::make_unique<ChildProcess>(*std::move(process))};
    }
    ADD_FAILURE() << up;
    return {};
  }

  // With room for one session on the device: a step of one is a store of another.
  GdnServerOptions Options(int port) const {
    const int64_t bytes = steady_.Get("a").reply.state_bytes();
    return {.memory = {.device_state_bytes = bytes * 3 / 2},
            .states = {.redis = {.endpoint = absl::StrCat("127.0.0.1:", port), .password_file = Path("password")}}};
  }

  const TempFolder folder_;
  RedisServer redis_{{.tcp = true, .arguments = {"--requirepass", "s3cret"}}};
  Tunnel near_, far_;  // beside Redis, and beside the server
  const TokenFeed feed_ = TokenFeed::Operator(1);
  TestServer steady_server_;
  const Caller steady_{steady_server_};
};

TEST_F(RedisTls, SessionsRestInRedisBehindStunnel) {
  TestServer server(Options(far_.port));
  const Caller caller(server);
  for (const char* id : {"a", "b"}) feed_.Start(caller, id, kPrompt, 2);
  for (int64_t t = 9; t < 15; ++t) {
    for (const char* id : {"a", "b"}) {
      ASSERT_EQ(feed_.DecodeAll(caller, id, {t, 1}), feed_.DecodeAll(steady_, id, {t, 1})) << id << t;
    }
  }
  EXPECT_GT(TierNamed(caller, "redis").stores(), 4);

  // The tunnel ends and begins under the sessions.
  far_.process = nullptr;
  const auto refused = caller.Decode(feed_.Decode({"a"}, TokenRange{15, 1}));
  EXPECT_TRUE(RefusedAs(refused, "TIER_UNAVAILABLE"));
  EXPECT_EQ(feed_.DecodeAll(caller, "b", {15, 1}), feed_.DecodeAll(steady_, "b", {15, 1})) << "which is on the device";
  far_ = Run("redis-client.conf", far_.port, near_.port);
  ASSERT_TRUE(WaitUntil([&] { return caller.Export("a").ok(); }, "the tunnel"));
  EXPECT_EQ(caller.State("a"), steady_.State("a"));

  // And the password is another.
  redis_.CommandAs("s3cret", {"CONFIG", "SET", "requirepass", "n3w"});
  SetPassword("n3w");
  redis_.CommandAs("n3w", {"CLIENT", "KILL", "TYPE", "normal"});
  ASSERT_TRUE(WaitUntil([&] { return caller.Export("b").ok(); }, "the password"));
  EXPECT_EQ(caller.State("b"), steady_.State("b"));
}

TEST_F(RedisTls, WhatIsWrongIsTold) {
  SetPassword("wr0ng");
  const auto started = [&](int port) {
    auto server = *GdnServer::Make(MakeTestBackend(/*threads=*/1), Options(port));
    return server->Start();
  };
  const absl::Status refused = started(far_.port);
  EXPECT_NE(refused.message().find("refused the password of --redis-password-file"), std::string::npos) << refused;
  EXPECT_EQ(refused.message().find("wr0ng"), std::string::npos);
  SetPassword("s3cret");
  EXPECT_FALSE(started(near_.port).ok()) << "that port wants TLS";

  const Tunnel stranger = Run("redis-client.conf", /*port=*/0, near_.port, "stranger");
  EXPECT_FALSE(started(stranger.port).ok()) << "a certificate of another CA";
  EXPECT_TRUE(started(far_.port).ok());
}

}  // namespace
}  // namespace gdn::redis_tls_test
