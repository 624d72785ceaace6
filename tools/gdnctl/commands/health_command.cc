// gdnctl health: the standard grpc.health.v1 service, for container health checks, which have no curl and no stub.
#include <future>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "client/cpp/rpc_status.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/connection.h"

ABSL_DECLARE_FLAG(absl::Duration, timeout);

namespace gdn {
namespace {

// HealthCheckResponse.ServingStatus.
constexpr const char* kStatusNames[] = {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"};
constexpr uint32_t kServing = 1;

// On the wire HealthCheckRequest{service = 1} is a StringValue, and HealthCheckResponse{status = 1} a UInt32Value.
using HealthStub = grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::UInt32Value>;

absl::StatusOr<uint32_t> Check(const std::string& service) {
  HealthStub stub(grpc::CreateChannel(absl::GetFlag(FLAGS_target), CredentialsByFlags()));
  grpc::ClientContext context;
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  if (timeout < absl::InfiniteDuration()) context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  google::protobuf::StringValue request;
  request.set_value(service);
  google::protobuf::UInt32Value response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  GDN_RETURN_IF_ERROR(StatusFromGrpc(done.get_future().get()));
  return response.value();
}

absl::StatusOr<int> RunHealth(const std::vector<std::string>& services) {
  if (services.size() > 1) return UsageError("one service at a time");
  GDN_ASSIGN_OR_RETURN(const uint32_t status, Check(services.empty() ? "" : services[0]));
  if (status < std::size(kStatusNames)) {
    absl::PrintF("%s\n", kStatusNames[status]);
  } else {
    absl::PrintF("status %d\n", status);
  }
  return status == kServing ? kExitOk : kExitFailed;
}

}  // namespace

std::vector<Command> HealthCommands() {
  return {{.name = "health",
           .arguments = "[SERVICE]",
           .summary = "Ask the standard gRPC health service; exit code 0 only for SERVING",
           .details = "Without SERVICE it asks about the whole server. 'gdn.v1.GdnService' asks about the API.\n",
           .run = RunHealth}};
}

}  // namespace gdn
