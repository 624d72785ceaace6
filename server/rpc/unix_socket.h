// A Unix socket that a server is to listen on, at a path that its owner alone may use.
//
// It is bound in a folder that nobody else can enter, and Publish moves it to its path: with mode 0600 from the first
// moment, whatever the umask, in one step over what a killed server left there, and never over one that is served.
// Thread safety: for one thread at a time. Ownership: owns the socket's name; the destructor removes it, unless
// somebody has put another socket there since.
//
//   GDN_ASSIGN_OR_RETURN(UnixSocket socket, UnixSocket::Prepare("/run/gdn/gdn.sock"));
//   GDN_ASSIGN_OR_RETURN(ListeningSocket listening, ListenOnUnix(socket.bind_path()));
//   GDN_RETURN_IF_ERROR(socket.Publish());
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/temporary_folder.h"

namespace gdn {

// The path of "unix:/PATH" or "unix:///PATH"; nothing where `address` does not begin with "unix:".
std::optional<std::string> UnixSocketPath(const std::string& address);

class UnixSocket {
 public:
  // INVALID_ARGUMENT where `path` is not absolute or too long for a socket, UNAVAILABLE where its folder cannot be
  // written to.
  static absl::StatusOr<UnixSocket> Prepare(const std::string& path);
  UnixSocket(UnixSocket&& other) noexcept
      : path_(std::move(other.path_)),
        bound_path_(std::move(other.bound_path_)),
        folder_(std::move(other.folder_)),
        published_(std::exchange(other.published_, std::nullopt)) {}
  UnixSocket& operator=(UnixSocket&&) = delete;
  ~UnixSocket();

  // The path to bind it at.
  const std::string& bind_path() const { return bound_path_; }
  // Once somebody listens there. UNAVAILABLE where another process listens on the path; ALREADY_EXISTS where what is
  // there is no socket.
  absl::Status Publish();

 private:
  // Which file it is, wherever it is named.
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };

  UnixSocket(std::string path, TemporaryFolder folder)
      : path_(std::move(path)), bound_path_(folder.path() + "/s"), folder_(std::move(folder)) {}

  std::string path_;
  std::string bound_path_;
  std::optional<TemporaryFolder> folder_;  // until Publish
  std::optional<Identity> published_;
};

}  // namespace gdn
