// A Unix socket for a server to listen on. Only the user that runs the server can connect.
//
// The socket is bound in a folder that no other user can enter, and Publish moves it to its path. So it has mode 0600
// from the first moment, whatever the umask. Publish replaces the socket of a server that was killed in one step, but
// never one that a process listens on.
// Thread safety: for one thread at a time. Ownership: owns the file at the path; the destructor removes it, unless it
// was replaced meanwhile.
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
#include "base/files/temporary_folder.h"

namespace gdn {

// Returns the path of "unix:/PATH" or "unix:///PATH", which is not checked; nullopt if `address` does not begin with
// "unix:".
std::optional<std::string> UnixSocketPath(const std::string& address);

class UnixSocket {
 public:
  // Makes a folder beside `path`, and those above it if missing, in which to bind the socket that Publish moves to
  // `path`; nothing is bound yet. INVALID_ARGUMENT if `path` is not absolute, or it or the temporary path is too long
  // for a socket. UNAVAILABLE if its folder cannot be written to.
  static absl::StatusOr<UnixSocket> Prepare(const std::string& path);
  UnixSocket(UnixSocket&& other) noexcept
      : path_(std::move(other.path_)),
        bound_path_(std::move(other.bound_path_)),
        folder_(std::move(other.folder_)),
        published_(std::exchange(other.published_, std::nullopt)) {}
  UnixSocket& operator=(UnixSocket&&) = delete;
  ~UnixSocket();

  // The path to bind the socket to.
  const std::string& bind_path() const { return bound_path_; }
  // Moves the socket to its path, with mode 0600. Call once the server listens on bind_path(). UNAVAILABLE if another
  // process listens on the path, or the socket cannot be moved; ALREADY_EXISTS if the path exists and is not a socket.
  absl::Status Publish();

 private:
  // Identifies the file whatever its name.
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
