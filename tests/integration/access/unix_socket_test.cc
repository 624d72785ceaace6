// Servers on Unix sockets: what they leave of what they find at the path, and at their end.
#include "server/rpc/transport/unix_socket.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "client/cpp/client.h"
#include "tests/integration/support/test_server.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::unix_socket_test {
namespace {

using testing::HasSubstr;

// A listening socket at `path`, -1 where there cannot be one.
int ListenAt(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0) return fd;
  close(fd);
  return -1;
}

bool Answers(const std::string& target) { return Client::Connect(target)->GetServerInfo().ok(); }

// How a server that is to listen at `path` starts.
absl::Status StartAt(const std::string& path) {
  const auto server =
      GdnServer::Make(MakeTestBackend(1), {.listen = {"unix:" + path}, .memory = {.device_state_bytes = 1 << 20}})
          .value();
  return server->Start();
}

TEST(UnixSocket, ServesBesideTcpAndGoesWithItsServer) {
  const TempFolder folder;
  const std::string path = folder.path() + "/gdn.sock";
  {
    TestServer server({.listen = {"unix:" + path, "127.0.0.1:0"}});
    EXPECT_TRUE(Answers("unix:" + path));
    EXPECT_TRUE(Answers("unix://" + path));
    EXPECT_TRUE(Answers(server.address()));
    EXPECT_EQ(server.server().addresses(), (std::vector<std::string>{"unix:" + path, server.address()}));

    struct stat found {};
    ASSERT_EQ(lstat(path.c_str(), &found), 0);
    EXPECT_TRUE(S_ISSOCK(found.st_mode));
    EXPECT_EQ(found.st_mode & ALLPERMS, S_IRUSR | S_IWUSR);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "something lies beside it";
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(UnixSocket, ReplacesOneThatNobodyListensOn) {
  const TempFolder folder;
  const std::string path = folder.path() + "/gdn.sock";
  close(ListenAt(path));
  ASSERT_TRUE(std::filesystem::exists(path));
  const TestServer server({.listen = {"127.0.0.1:0", "unix:" + path}});
  EXPECT_TRUE(Answers("unix:" + path));
}

TEST(UnixSocket, RefusesOneThatIsServed) {
  const TempFolder folder;
  const std::string path = folder.path() + "/gdn.sock";
  const TestServer server({.listen = {"127.0.0.1:0", "unix:" + path}});
  const absl::Status second = StartAt(path);
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.ToString(), HasSubstr("another process listens there"));
  EXPECT_TRUE(Answers("unix:" + path));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(UnixSocket, LeavesOtherFilesAlone) {
  const TempFolder folder;
  const std::string path = folder.path() + "/notes";
  WriteFile(path, "kept");
  EXPECT_EQ(StartAt(path).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(path), "kept");
}

TEST(UnixSocket, LeavesItsSuccessorsSocketAlone) {
  const TempFolder folder;
  const std::string path = folder.path() + "/gdn.sock";
  int successor = -1;
  {
    const TestServer server({.listen = {"127.0.0.1:0", "unix:" + path}});
    ASSERT_EQ(unlink(path.c_str()), 0);
    successor = ListenAt(path);
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  close(successor);
}

TEST(UnixSocket, RefusesPathsThatNoSocketCanHave) {
  const TempFolder folder;
  for (const std::string& path : {std::string("relative.sock"), std::string(), folder.path() + "/",
                                  folder.path() + "/" + std::string(110, 'x')}) {
    EXPECT_EQ(StartAt(path).code(), absl::StatusCode::kInvalidArgument) << path;
  }
  WriteFile(folder.path() + "/file", "x");
  EXPECT_EQ(StartAt(folder.path() + "/file/gdn.sock").code(), absl::StatusCode::kUnavailable);
}

TEST(UnixSocket, KnowsItsAddresses) {
  EXPECT_EQ(UnixSocketPath("unix:/a/b"), "/a/b");
  EXPECT_EQ(UnixSocketPath("unix:///a/b"), "/a/b");
  EXPECT_EQ(UnixSocketPath("127.0.0.1:1"), std::nullopt);
}

}  // namespace
}  // namespace gdn::unix_socket_test
