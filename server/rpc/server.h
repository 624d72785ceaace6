// A running gRPC server: gdn.v1.GdnService on the callback API, health, reflection, and an orderly end.
//
// Thread safety: Start and Stop from one thread. Ownership: the context must outlive it; Stop is called on destruction.
//
//   GDN_ASSIGN_OR_RETURN(auto server, RpcServer::Start(context, "127.0.0.1:0"));
//   std::cout << server->port();
//   server->Stop(absl::Seconds(30));
#pragma once

#include <memory>
#include <string>

#include <grpcpp/server.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/rpc/service_context.h"

namespace gdn {

class RpcServer {
 public:
  // UNAVAILABLE where `address` cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const ServiceContext& context, const std::string& address);
  ~RpcServer();

  int port() const { return port_; }
  // Health turns NOT_SERVING; calls are still answered. Safe from any thread until Stop.
  void ReportNotServing();
  // Health turns NOT_SERVING and new steps are refused; accepted ones may take until `timeout`. True where all of them
  // ended.
  bool Stop(absl::Duration timeout);

 private:
  explicit RpcServer(const ServiceContext& context);

  const ServiceContext& context_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace gdn
