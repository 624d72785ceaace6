#include "server/rpc/transport/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;

absl::Status CannotListen(const std::string& path, absl::string_view why) {
  return absl::UnavailableError(StrCat("cannot listen on 'unix:", path, "': ", why));
}

// True if a process listens on the socket at `path`; if not, errno says why.
bool IsServed(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  close(fd);
  errno = error;
  return connected == 0 || error == EAGAIN;  // EAGAIN: its queue is full
}

// OK if nothing exists at `path`, or a socket that no process listens on.
absl::Status CheckFree(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : CannotListen(path, std::strerror(errno));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::AlreadyExistsError(
        StrCat("cannot listen on 'unix:", path, "': a file that is no socket is there; move it away"));
  }
  if (IsServed(path)) return CannotListen(path, "another process listens there; give each server a path of its own");
  if (errno == ECONNREFUSED || errno == ENOENT) return absl::OkStatus();
  return CannotListen(path, StrCat("a socket exists there, and it is not possible to tell whether a server uses it (",
                                   std::strerror(errno), "); remove the socket if no server does"));
}

}  // namespace

std::optional<std::string> UnixSocketPath(const std::string& address) {
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix:")) return std::nullopt;
  if (absl::StartsWith(path, "///")) path.remove_prefix(2);
  return std::string(path);
}

absl::StatusOr<UnixSocket> UnixSocket::Prepare(const std::string& path) {
  const std::filesystem::path file = path;
  if (!file.is_absolute() || !file.has_filename()) {
    return absl::InvalidArgumentError(StrCat("'unix:", path, "' is no address, expected unix:/PATH"));
  }
  GDN_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::MakeIn(file.parent_path().string()));
  UnixSocket socket(path, std::move(folder));
  const size_t longest = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= longest && socket.bound_path_.size() <= longest) return socket;
  return absl::InvalidArgumentError(StrCat("'unix:", path, "' is too long: the path has ", path.size(),
                                           " bytes and a temporary path beside it ", socket.bound_path_.size(),
                                           ", but a socket path has at most ", longest, "; choose a shorter path"));
}

UnixSocket::~UnixSocket() {
  struct stat found {};
  if (published_.has_value() && lstat(path_.c_str(), &found) == 0 &&
      Identity{.device = found.st_dev, .inode = found.st_ino} == *published_) {
    unlink(path_.c_str());
  }
}

absl::Status UnixSocket::Publish() {
  GDN_RETURN_IF_ERROR(CheckFree(path_));
  struct stat made {};
  if (chmod(bound_path_.c_str(), kOwnerOnly) != 0 || lstat(bound_path_.c_str(), &made) != 0 ||
      std::rename(bound_path_.c_str(), path_.c_str()) != 0) {
    return CannotListen(path_, std::strerror(errno));
  }
  published_ = {.device = made.st_dev, .inode = made.st_ino};
  folder_.reset();
  return absl::OkStatus();
}

}  // namespace gdn
