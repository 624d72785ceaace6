#include "server/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <limits>

#include "base/string_cat.h"
#include "gdn/v1/service.grpc.pb.h"

namespace gdn {
namespace {

constexpr absl::Duration kStreamGrace = absl::Seconds(1);  // for replies on their way when the last step has ended

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const ServiceContext& context, const std::string& address) {
  std::unique_ptr<RpcServer> result(new RpcServer(context));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  // The service itself refuses what is over the limit, with a reason; the transport only stops what is absurd.
  builder.SetMaxReceiveMessageSize(static_cast<int>(
      std::min<int64_t>(2 * context.limits.max_message_bytes + (1 << 20), std::numeric_limits<int>::max())));
  builder.SetMaxSendMessageSize(-1);
  // Two servers on one port would each get half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &result->port_);
  builder.RegisterService(result->service_.get());
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || result->port_ == 0) {
    return absl::UnavailableError(
        StrCat("cannot listen on '", address, "': is the port taken, or the host not one of this machine's?"));
  }
  grpc::HealthCheckServiceInterface* health = result->server_->GetHealthCheckService();
  health->SetServingStatus("", true);
  health->SetServingStatus(v1::GdnService::service_full_name(), true);
  return result;
}

RpcServer::~RpcServer() { Stop(absl::ZeroDuration()); }

void RpcServer::ReportNotServing() { server_->GetHealthCheckService()->SetServingStatus(false); }

bool RpcServer::Stop(absl::Duration timeout) {
  if (server_ == nullptr) return true;
  const absl::Time end = absl::Now() + timeout;
  server_->GetHealthCheckService()->SetServingStatus(false);
  const bool drained = context_.batcher.Drain(timeout);
  server_->Shutdown(absl::ToChronoTime(std::max(absl::Now(), std::min(end, absl::Now() + kStreamGrace))));
  server_->Wait();
  server_ = nullptr;
  return drained;
}

}  // namespace gdn
