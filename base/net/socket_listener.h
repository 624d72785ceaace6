// A thread that accepts the connections of listening sockets, up to limits on their number.
//
// If the process has no descriptor left, the listener accepts a waiting connection with a reserved descriptor and
// closes it, so that its client fails at once. It tries again every 100 ms.
// The callback owns the connection and closes it. The listener notices closed connections by itself, but only when it
// needs to: before it refuses one, and when it is asked for counts.
// Thread safety: safe from any thread; callbacks run on the listener's thread, one at a time. Ownership: owns the
// listening sockets and the thread.
//
//   std::vector<ListeningSocket> sockets = *ListenOnTcp("0.0.0.0:50061");
//   auto listener = SocketListener::Start(std::move(sockets), {.connections = 1000}, take);
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/net/listening_socket.h"
#include "base/owned_fd.h"
#include "base/threads/steady_clock.h"

namespace gdn {

struct ConnectionLimits {
  int64_t connections = 0;           // most connections that are open at once; 0: no limit
  int64_t connections_per_peer = 0;  // per IPv4 address or IPv6 /64; 0: no limit. Unix sockets are exempt
  // IP addresses exempt from the per-peer limit, because many clients come through them; an IPv6 address exempts its
  // /64. Texts that are no IP address are ignored.
  std::vector<std::string> proxies;
};

class SocketListener {
 public:
  // Called for each accepted connection; owns its non-blocking descriptor. `origin`: number of the ListeningSocket.
  using OnConnection = std::function<void(OwnedFd fd, size_t origin)>;

  // Starts the thread, which accepts connections from now on. UNAVAILABLE if the system has no descriptor for it.
  static absl::StatusOr<std::unique_ptr<SocketListener>> Start(std::vector<ListeningSocket> sockets,
                                                               ConnectionLimits limits, OnConnection on_connection);
  SocketListener(const SocketListener&) = delete;
  SocketListener& operator=(const SocketListener&) = delete;
  ~SocketListener() { Stop(); }

  // Closes the listening sockets, and waits until no callback is running. Not for use in a callback. Accepted
  // connections stay open. A second call does nothing.
  void Stop();
  // Returns why the listener now refuses all new connections (no descriptors, or the limit on all of them), as a text
  // for people; "" if it accepts them.
  std::string Trouble() const;
  // Number of open connections.
  int64_t connections() const;
  // Number of connections closed at once because of a limit or for want of a descriptor.
  int64_t refused() const;

 private:
  struct Connection {
    ino_t inode = 0;   // identifies the socket, in case the descriptor number is reused
    std::string peer;  // network of the peer, as NetworkOf; "" for a Unix socket or a proxy
  };

  SocketListener(std::vector<ListeningSocket> sockets, ConnectionLimits limits, OnConnection on_connection);
  void Run();
  // Accepts the connections that wait at `socket`. Returns false if the socket must be tried again later.
  bool Accept(const ListeningSocket& socket);
  bool OutOfDescriptors(const ListeningSocket& socket, int error);
  // Counts the connection. Returns false if a limit leaves no room for it.
  bool Admit(int fd, const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasRoomLocked(const std::string& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLocked(std::map<int, Connection>::iterator closed) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetClosedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ConnectionLimits limits_;
  const std::set<std::string> proxies_;  // networks of limits_.proxies
  const OnConnection on_connection_;
  std::vector<ListeningSocket> sockets_;  // used by the thread only until it has ended
  OwnedFd reserve_;                       // descriptor to accept with when none is left; used like sockets_
  OwnedFd wake_;
  mutable absl::Mutex mu_;
  mutable std::map<int, Connection> open_ ABSL_GUARDED_BY(mu_);  // by descriptor; includes some that have closed
  mutable std::map<std::string, int64_t> of_peer_ ABSL_GUARDED_BY(mu_);
  std::string trouble_ ABSL_GUARDED_BY(mu_);
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  SteadyTime next_look_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
  std::thread thread_;
};

}  // namespace gdn
