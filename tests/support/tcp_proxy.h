// A TCP proxy on the loopback address that can lose a server's replies, be cut off, and lead to another server: for
// tests of what a client does then.
//
// Thread safety: all methods from any thread. Ownership: owns its sockets and threads; connections end with it.
//
//   TcpProxy proxy(server_port);
//   auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(proxy.port()), credentials);
//   proxy.DropReplies();       // the server still hears the client; the client hears nothing
//   proxy.CloseConnections();  // the client sees a broken connection, and may make another
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

class TcpProxy {
 public:
  // Forwards to 127.0.0.1:`target_port`. Ends the program where no port can be had: a test would say nothing.
  explicit TcpProxy(int target_port);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  int port() const { return port_; }
  // From now on the server's bytes on the connections there are go nowhere; the client's still reach it.
  void DropReplies();
  // The server's bytes that went nowhere.
  int64_t dropped_bytes() const { return dropped_bytes_; }
  // From now on nothing passes on any connection, nor on new ones, until it is called again: a partition. What was sent
  // meanwhile then arrives.
  void CutOff(bool cut) { cut_ = cut; }
  // Where new connections lead.
  void LeadTo(int target_port) { target_port_ = target_port; }
  // Resets both sides of every connection.
  void CloseConnections();

 private:
  struct Connection {
    int client = -1;
    int server = -1;
    std::atomic<bool> dropping{false};
    std::atomic<bool> ending{false};
    std::thread thread;  // last: it uses the above
  };

  void Accept();
  void Forward(Connection& connection);

  std::atomic<int> target_port_;
  std::atomic<bool> cut_{false};
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> dropped_bytes_{0};

  absl::Mutex mu_;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;  // last: it uses all of the above
};

}  // namespace gdn
