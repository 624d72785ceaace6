// A TCP proxy on the loopback address that tests clients: it can drop a server's replies, block all traffic, close
// connections, and switch to another server.
//
// Thread safety: safe from any thread. Ownership: owns its sockets and threads; the destructor ends all connections.
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
  // Forwards to 127.0.0.1:`target_port`. Ends the program if it cannot get a port.
  explicit TcpProxy(int target_port);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  int port() const { return port_; }
  // From now on, drops the server's bytes on all existing connections. The client's bytes still reach the server.
  void DropReplies();
  // Returns the number of the server's bytes that were dropped.
  int64_t dropped_bytes() const { return dropped_bytes_; }
  // Returns the number of connections that were accepted so far.
  int64_t accepted() const { return accepted_; }
  // CutOff(true) holds all bytes back, on all connections and on new ones: a partition. After CutOff(false), the bytes
  // that were sent meanwhile arrive.
  void CutOff(bool cut) { cut_ = cut; }
  // Makes new connections lead to 127.0.0.1:`target_port`.
  void LeadTo(int target_port) { target_port_ = target_port; }
  // Resets both sides of every connection.
  void CloseConnections();

 private:
  struct Connection {
    int client = -1;
    int server = -1;
    std::atomic<bool> dropping{false};
    std::atomic<bool> ending{false};
    std::thread thread;  // must be last, because it uses the members above
  };

  void Accept();
  void Forward(Connection& connection);

  std::atomic<int> target_port_;
  std::atomic<bool> cut_{false};
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> dropped_bytes_{0};
  std::atomic<int64_t> accepted_{0};

  absl::Mutex mu_;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;  // must be last, because it uses the members above
};

}  // namespace gdn
