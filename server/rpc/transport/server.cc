#include "server/rpc/transport/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/steady_clock.h"
#include "base/threads/stop_signal.h"
#include "gdn/v1/service.grpc.pb.h"
#include "server/rpc/service_parts.h"
#include "server/rpc/transport/gdn_service.h"

namespace gdn {
namespace {

// Removes the reflection plugin from one builder, because InitProtoReflectionServerBuilderPlugin adds it to every
// builder of the process.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

// Time for replies that are being sent when the last step has ended.
constexpr absl::Duration kStreamGrace = absl::Seconds(1);
// Cancelled calls end at once, so after this time they are stuck.
constexpr absl::Duration kStuckAfter = absl::Seconds(10);

}  // namespace

RpcServer::RpcServer(const ServiceParts& parts) : parts_(parts), service_(NewGdnService(parts)) {}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const ServiceParts& parts,
                                                            const std::vector<std::string>& addresses,
                                                            const RpcServerOptions& options) {
  std::unique_ptr<RpcServer> result(new RpcServer(parts));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  if (!options.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  // The service itself refuses messages over the limit, with a reason. The transport's limit is far higher.
  builder.SetMaxReceiveMessageSize(static_cast<int>(
      std::min<int64_t>(2 * parts.steps.limits.max_message_bytes + (1 << 20), std::numeric_limits<int>::max())));
  builder.SetMaxSendMessageSize(-1);
  Apply(options.limits, builder);
  // Bind before gRPC starts, so that a failed start has not answered any call.
  GDN_ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, result->Bind(addresses));
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  const auto acceptor = [&builder](const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    return std::shared_ptr<Acceptor>(builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials));
  };
  const auto plain = acceptor(grpc::InsecureServerCredentials());
  const auto secure = options.tls == nullptr ? plain : acceptor(options.tls);
  builder.RegisterService(result->service_.get());
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr) return absl::UnavailableError("gRPC's server does not start; its log says why");
  for (UnixSocket& socket : result->sockets_) GDN_RETURN_IF_ERROR(socket.Publish());
  std::vector<std::shared_ptr<Acceptor>> acceptors;
  for (const std::string& address : addresses) {
    acceptors.push_back(UnixSocketPath(address).has_value() ? plain : secure);
  }
  const auto take = [acceptors](OwnedFd fd, size_t origin) {
    Acceptor::NewConnectionParameters made;
    made.fd = std::move(fd).Release();
    acceptors[origin]->HandleNewConnection(&made);
  };
  GDN_ASSIGN_OR_RETURN(result->listener_, SocketListener::Start(std::move(sockets), options.limits.connections, take));
  grpc::HealthCheckServiceInterface* health = result->server_->GetHealthCheckService();
  health->SetServingStatus("", true);
  health->SetServingStatus(v1::GdnService::service_full_name(), true);
  health->SetServingStatus(kDevicesHealth, true);
  return result;
}

absl::StatusOr<std::vector<ListeningSocket>> RpcServer::Bind(const std::vector<std::string>& addresses) {
  std::vector<ListeningSocket> all;
  for (size_t i = 0; i < addresses.size(); ++i) {
    std::vector<ListeningSocket> made;
    if (const auto path = UnixSocketPath(addresses[i]); path.has_value()) {
      GDN_ASSIGN_OR_RETURN(UnixSocket socket, UnixSocket::Prepare(*path));
      GDN_ASSIGN_OR_RETURN(made.emplace_back(), ListenOnUnix(socket.bind_path()));
      sockets_.push_back(std::move(socket));
      addresses_.push_back(addresses[i]);
    } else {
      GDN_ASSIGN_OR_RETURN(made, ListenOnTcp(addresses[i]));
      const int port = made.front().port;
      addresses_.push_back(StrCat(addresses[i].substr(0, addresses[i].rfind(':')), ":", port));
      if (port_ == 0) port_ = port;
    }
    for (ListeningSocket& socket : made) {
      socket.origin = i;
      all.push_back(std::move(socket));
    }
  }
  return all;
}

RpcServer::~RpcServer() { Stop(absl::ZeroDuration()); }

void RpcServer::ReportDegraded() { server_->GetHealthCheckService()->SetServingStatus(kDevicesHealth, false); }

void RpcServer::ReportNotServing() { server_->GetHealthCheckService()->SetServingStatus(false); }

bool RpcServer::Stop(absl::Duration timeout, const std::function<void()>& before_closing) {
  if (server_ == nullptr) return true;
  const SteadyTime end = SteadyNow() + timeout;
  server_->GetHealthCheckService()->SetServingStatus(false);
  const bool drained = parts_.steps.engines.Drain(timeout);
  parts_.steps.shared_regions.Drain();
  const bool moved = parts_.common.transfers.WaitForNone(std::max(end - SteadyNow(), absl::ZeroDuration()));
  if (before_closing) {
    before_closing();
    // Transfers that have begun meanwhile.
    parts_.common.transfers.WaitForNone(std::max(end - SteadyNow(), absl::ZeroDuration()));
  }
  parts_.common.drain.End();
  if (listener_ != nullptr) listener_->Stop();
  server_->Shutdown(
      absl::ToChronoTime(absl::Now() + std::clamp(end - SteadyNow(), absl::ZeroDuration(), kStreamGrace)));
  // A call never ends if the driver never ends its step. Do not wait for it for ever, so that the other sessions can be
  // made durable.
  auto ended = std::make_shared<StopSignal>();
  std::thread waiter([server = server_.get(), ended] {
    server->Wait();
    ended->Give();
  });
  if (ended->GivenWithin(kStuckAfter)) {
    waiter.join();
    server_ = nullptr;
    sockets_.clear();
    return drained && moved;
  }
  stuck_ = true;
  waiter.detach();
  static_cast<void>(server_.release());  // the stuck calls still use both
  static_cast<void>(service_.release());
  return false;
}

}  // namespace gdn
