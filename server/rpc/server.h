// A running gRPC server: gdn.v1.GdnService on the callback API, health, reflection, and an orderly end.
//
// Thread safety: Start and Stop from one thread. Ownership: the context must outlive it; Stop is called on destruction.
//
//   GDN_ASSIGN_OR_RETURN(auto server, RpcServer::Start(context, {"127.0.0.1:0", "unix:/run/gdn/gdn.sock"}));
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
#include "base/listening_socket.h"
#include "base/socket_listener.h"
#include "server/rpc/service_context.h"
#include "server/rpc/transport_limits.h"
#include "server/rpc/unix_socket.h"

namespace gdn {

struct RpcServerOptions {
  TransportLimits limits = {};
  std::shared_ptr<grpc::ServerCredentials> tls = nullptr;  // of every HOST:PORT; nullptr: none
  bool reflection = true;                                  // tells whoever asks what the API is
};

class RpcServer {
 public:
  // Each address is HOST:PORT, where port 0 is a free one, or unix:/PATH (server/rpc/unix_socket.h). UNAVAILABLE where
  // one cannot be bound; errors of CheckHostPort (base/host_port.h) and UnixSocket.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const ServiceContext& context,
                                                          const std::vector<std::string>& addresses,
                                                          const RpcServerOptions& options = {});
  ~RpcServer();

  // Of the first HOST:PORT; 0 where there is none.
  int port() const { return port_; }
  // As given to Start, with the ports that were found.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // Health turns NOT_SERVING; calls are still answered. Safe from any thread until Stop.
  void ReportNotServing();
  // Health of the service `kDevicesHealth` alone does: a device has failed, and others go on.
  void ReportDegraded();
  static constexpr const char* kDevicesHealth = "devices";
  // Health turns NOT_SERVING and new steps are refused; accepted ones, exports and imports under way and the like may
  // take until `timeout`. Then `before_closing` is called, while calls that do not step are still answered, and the
  // connections end. True where all that was under way ended.
  bool Stop(absl::Duration timeout, const std::function<void()>& before_closing = nullptr);
  // Who accepts its connections.
  const SocketListener& listener() const { return *listener_; }
  // After Stop: whether calls do not even end when they are cancelled, as on a device that hangs. They go on using the
  // context.
  bool has_stuck_calls() const { return stuck_; }

 private:
  explicit RpcServer(const ServiceContext& context);
  // Listens on them; connections wait until somebody accepts.
  absl::StatusOr<std::vector<ListeningSocket>> Bind(const std::vector<std::string>& addresses);

  const ServiceContext& context_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<UnixSocket> sockets_;
  std::unique_ptr<SocketListener> listener_;
  std::vector<std::string> addresses_;
  int port_ = 0;
  bool stuck_ = false;
};

}  // namespace gdn
