// A running gRPC server: gdn.v1.GdnService on the callback API, the health service, reflection, and an orderly
// shutdown.
//
// Thread safety: Start and Stop from one thread. Ownership: the parts must outlive it; Stop is called on destruction.
//
//   GDN_ASSIGN_OR_RETURN(auto server, RpcServer::Start(parts, {"127.0.0.1:0", "unix:/run/gdn/gdn.sock"}));
//   std::cout << server->port();
//   server->Stop(absl::Seconds(30));
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/net/listening_socket.h"
#include "base/net/socket_listener.h"
#include "server/rpc/transport/transport_limits.h"
#include "server/rpc/transport/unix_socket.h"

namespace gdn {

struct ServiceParts;

struct RpcServerOptions {
  TransportLimits limits = {};
  std::shared_ptr<grpc::ServerCredentials> tls = nullptr;  // for every HOST:PORT address; nullptr: no TLS
  bool reflection = true;                                  // serves gRPC reflection
};

class RpcServer {
 public:
  // Begins to serve; calls are answered on return. Each address is HOST:PORT (port 0: any free port) or unix:/PATH
  // (server/rpc/transport/unix_socket.h). UNAVAILABLE if an address cannot be bound or gRPC does not start; errors of
  // CheckHostPort (base/net/host_port.h) and UnixSocket. `parts` must outlive the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const ServiceParts& parts,
                                                          const std::vector<std::string>& addresses,
                                                          const RpcServerOptions& options = {});
  ~RpcServer();

  // The port of the first HOST:PORT address; 0 if there is none.
  int port() const { return port_; }
  // Returns the addresses given to Start, in their order, with the actual ports.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // Sets the health of all services to NOT_SERVING; calls are still answered. Safe from any thread until Stop.
  void ReportNotServing();
  // Sets only the health of the service `kDevicesHealth` to NOT_SERVING: one device has failed and others still work.
  void ReportDegraded();
  static constexpr const char* kDevicesHealth = "devices";
  // Shuts the server down, and blocks until that is done. Health turns NOT_SERVING and new steps are refused. Accepted
  // steps, exports, imports and other open calls may take until `timeout`. Then `before_closing` is called, while calls
  // that do not step are still answered. After it connections are closed and open calls are cancelled; calls that do
  // not end within 10 s more are left behind. Returns true if everything that was open ended in time, or if the server
  // was stopped before.
  bool Stop(absl::Duration timeout, const std::function<void()>& before_closing = nullptr);
  // The listener that accepts the connections.
  const SocketListener& listener() const { return *listener_; }
  // After Stop: true if calls did not end even when they were cancelled, for example because a device hangs. They still
  // use the parts.
  bool has_stuck_calls() const { return stuck_; }

 private:
  explicit RpcServer(const ServiceParts& parts);
  // Listens on the addresses. Connections wait until the listener accepts them.
  absl::StatusOr<std::vector<ListeningSocket>> Bind(const std::vector<std::string>& addresses);

  const ServiceParts& parts_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<UnixSocket> sockets_;
  std::unique_ptr<SocketListener> listener_;
  std::vector<std::string> addresses_;
  int port_ = 0;
  bool stuck_ = false;
};

}  // namespace gdn
