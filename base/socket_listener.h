// A thread that accepts the connections of listening sockets, within limits that the process can bear.
//
// If the process has no descriptor left, a waiting connection is accepted with a reserved one and closed, so that its
// client hears of it at once. Accepting goes on as soon as there are descriptors again.
// The callback owns the connection and closes it. The listener finds closed connections by itself, but late: it looks
// for them before it refuses one.
// Thread safety: safe from any thread; the callback is called from the listener's own, one at a time. Ownership: owns
// the listening sockets and the thread.
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
#include "base/listening_socket.h"
#include "base/owned_fd.h"
#include "base/steady_clock.h"

namespace gdn {

struct ConnectionLimits {
  int64_t connections = 0;           // at once; 0: no limit
  int64_t connections_per_peer = 0;  // of one address, an IPv6 one by its /64; 0: no limit. Unix sockets have none
  std::vector<std::string> proxies;  // IP addresses that have no limit of their own: many clients come through them
};

class SocketListener {
 public:
  // Takes the descriptor, which is non-blocking; `origin` of the socket that it came by.
  using OnConnection = std::function<void(OwnedFd fd, size_t origin)>;

  static absl::StatusOr<std::unique_ptr<SocketListener>> Start(std::vector<ListeningSocket> sockets,
                                                               ConnectionLimits limits, OnConnection on_connection);
  SocketListener(const SocketListener&) = delete;
  SocketListener& operator=(const SocketListener&) = delete;
  ~SocketListener() { Stop(); }

  // Closes the listening sockets. No callback is under way on return.
  void Stop();
  // Why new clients are turned away now; "" where they are not.
  std::string Trouble() const;
  // Connections that are open.
  int64_t connections() const;
  // Connections that were closed at once, over a limit or for want of a descriptor.
  int64_t refused() const;

 private:
  struct Connection {
    ino_t inode = 0;   // which socket the descriptor stood for
    std::string peer;  // "": a Unix socket's, or a proxy's
  };

  SocketListener(std::vector<ListeningSocket> sockets, ConnectionLimits limits, OnConnection on_connection);
  void Run();
  // Accepts what waits there. False where it is to be tried again later.
  bool Accept(const ListeningSocket& socket);
  bool OutOfDescriptors(const ListeningSocket& socket, int error);
  // Counts it, or says that there is no room for it.
  bool Admit(int fd, const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasRoomLocked(const std::string& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLocked(std::map<int, Connection>::iterator closed) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetClosedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ConnectionLimits limits_;
  const std::set<std::string> proxies_;  // their networks
  const OnConnection on_connection_;
  std::vector<ListeningSocket> sockets_;  // the thread's, until it has ended
  OwnedFd reserve_;                       // likewise
  OwnedFd wake_;
  mutable absl::Mutex mu_;
  mutable std::map<int, Connection> open_ ABSL_GUARDED_BY(mu_);  // by descriptor; some may have closed
  mutable std::map<std::string, int64_t> of_peer_ ABSL_GUARDED_BY(mu_);
  std::string trouble_ ABSL_GUARDED_BY(mu_);
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  SteadyTime next_look_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
  std::thread thread_;
};

}  // namespace gdn
