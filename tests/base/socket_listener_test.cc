// Connections within limits, and a process that has no descriptor left and then has some again.
#include "base/net/socket_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::socket_listener_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class SocketListenerTest : public ::testing::Test {
 protected:
  void Start(ConnectionLimits limits, const std::string& address = "127.0.0.1:0") {
    GDN_ASSERT_OK_AND_ASSIGN(std::vector<ListeningSocket> sockets, ListenOnTcp(address));
    port_ = sockets.front().port;
    Start(std::move(sockets), std::move(limits));
  }
  void Start(std::vector<ListeningSocket> sockets, ConnectionLimits limits) {
    const auto take = [this](OwnedFd fd, size_t origin) {
      absl::MutexLock lock(&mu_);
      taken_.push_back(std::move(fd));
      origins_.push_back(origin);
    };
    GDN_ASSERT_OK_AND_ASSIGN(listener_, SocketListener::Start(std::move(sockets), std::move(limits), take));
  }
  OwnedFd Connect(const std::string& from = "127.0.0.1") const {
    OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from.c_str(), &address.sin_addr);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  // Number of connections that the listener has passed on.
  size_t Taken() {
    absl::MutexLock lock(&mu_);
    return taken_.size();
  }
  void WaitForTaken(size_t count) {
    while (Taken() < count) absl::SleepFor(absl::Milliseconds(1));
  }
  // Waits until the other side closes.
  static bool IsClosed(const OwnedFd& fd) {
    char byte = 0;
    return recv(fd.get(), &byte, 1, 0) <= 0;
  }
  void CloseAll() {
    absl::MutexLock lock(&mu_);
    taken_.clear();
  }

  int port_ = 0;
  absl::Mutex mu_;
  std::vector<OwnedFd> taken_;
  std::vector<size_t> origins_;
  std::unique_ptr<SocketListener> listener_;
};

TEST_F(SocketListenerTest, TurnsAwayWhatIsOverItsLimitsUntilOthersHaveClosed) {
  Start({.connections = 4, .connections_per_peer = 2, .proxies = {"127.0.0.9"}});
  std::vector<OwnedFd> clients;
  for (int i = 0; i < 2; ++i) clients.push_back(Connect());
  EXPECT_TRUE(IsClosed(Connect())) << "a third from one address";
  for (int i = 0; i < 2; ++i) clients.push_back(Connect("127.0.0.9"));
  WaitForTaken(4);
  EXPECT_TRUE(IsClosed(Connect("127.0.0.7"))) << "a fifth";
  EXPECT_THAT(listener_->Trouble(), HasSubstr("all 4 connections are taken"));
  EXPECT_EQ(listener_->refused(), 2);
  EXPECT_EQ(listener_->connections(), 4);

  CloseAll();
  EXPECT_EQ(listener_->Trouble(), "");
  EXPECT_EQ(listener_->connections(), 0);
  for (int i = 0; i < 3; ++i) clients.push_back(Connect("127.0.0.9"));
  WaitForTaken(3);
  EXPECT_EQ(listener_->connections(), 3) << "a proxy has no limit of its own";
}

TEST_F(SocketListenerTest, AcceptsAgainOnceThereAreDescriptors) {
  Start({});
  std::vector<OwnedFd> clients;
  clients.push_back(Connect());
  WaitForTaken(1);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<OwnedFd> all;
  do {
    all.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (all.back().valid());
  all.pop_back();
  std::vector<std::string> troubles;
  for (int round = 0; round < 3; ++round) {
    all.pop_back();  // this client's
    clients.push_back(Connect());
    EXPECT_TRUE(IsClosed(clients.back())) << "it is not left to wait";
    troubles.push_back(listener_->Trouble());
  }
  EXPECT_EQ(Taken(), 1u);
  EXPECT_GE(listener_->refused(), 3);
  all.clear();
  // Compared now: UndefinedBehaviorSanitizer wants descriptors to look at a matcher.
  EXPECT_THAT(troubles, Each(HasSubstr("cannot be accepted")));
  const OwnedFd client = Connect();
  WaitForTaken(2);
  while (!listener_->Trouble().empty()) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(SocketListenerTest, TellsByWhichSocketAConnectionCame) {
  const TempFolder folder;
  GDN_ASSERT_OK_AND_ASSIGN(std::vector<ListeningSocket> sockets, ListenOnTcp("localhost:0"));
  port_ = sockets.front().port;
  for (const ListeningSocket& socket : sockets) EXPECT_EQ(socket.port, port_);
  GDN_ASSERT_OK_AND_ASSIGN(sockets.emplace_back(), ListenOnUnix(folder.path() + "/s"));
  sockets.back().origin = 7;
  Start(std::move(sockets), {.connections = 0, .connections_per_peer = 1, .proxies = {}});
  std::vector<OwnedFd> clients;
  for (int i = 0; i < 3; ++i) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    (folder.path() + "/s").copy(address.sun_path, sizeof(address.sun_path) - 1);
    clients.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(clients.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  WaitForTaken(3);
  clients.push_back(Connect());
  WaitForTaken(4);
  EXPECT_EQ(origins_, (std::vector<size_t>{7, 7, 7, 0}));
}

TEST(ListeningSockets, SayWhyNobodyCanListen) {
  GDN_ASSERT_OK_AND_ASSIGN(const std::vector<ListeningSocket> first, ListenOnTcp("127.0.0.1:0"));
  const std::string taken = "127.0.0.1:" + std::to_string(first.front().port);
  for (const auto& [address, why] : {std::pair(taken, "the port is taken"),
                                     {"192.0.2.1:0", "none of this machine's"},
                                     {"no-such-host.invalid:0", "is not known"}}) {
    const absl::Status status = ListenOnTcp(address).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace gdn::socket_listener_test
