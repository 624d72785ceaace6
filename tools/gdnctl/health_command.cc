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
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "tools/gdnctl/commands.h"

ABSL_DECLARE_FLAG(absl::Duration, timeout);

namespace gdn {
namespace {

using google::protobuf::internal::WireFormatLite;

// HealthCheckResponse.ServingStatus.
constexpr const char* kStatusNames[] = {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"};
constexpr uint32_t kServing = 1;

// HealthCheckRequest{service = 1}: one string field, so the two messages are written and read by hand.
std::string EncodeRequest(const std::string& service) {
  if (service.empty()) return "";
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    WireFormatLite::WriteString(1, service, &out);
  }
  return bytes;
}

// HealthCheckResponse{status = 1}; fields of later versions are skipped.
absl::StatusOr<uint32_t> DecodeResponse(const std::string& bytes) {
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  uint32_t status = 0;
  while (const uint32_t tag = in.ReadTag()) {
    const bool read = tag == WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_VARINT)
                          ? in.ReadVarint32(&status)
                          : WireFormatLite::SkipField(&in, tag);
    if (!read) return absl::DataLossError("the answer is not a grpc.health.v1.HealthCheckResponse");
  }
  return status;
}

absl::StatusOr<std::string> Check(const std::string& request) {
  grpc::GenericStub stub(grpc::CreateChannel(absl::GetFlag(FLAGS_target), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  if (timeout < absl::InfiniteDuration()) context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  const grpc::Slice slice(request);
  const grpc::ByteBuffer sent(&slice, 1);
  grpc::ByteBuffer received;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &sent, &received,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  GDN_RETURN_IF_ERROR(StatusFromGrpc(done.get_future().get()));
  std::vector<grpc::Slice> slices;
  if (!received.Dump(&slices).ok()) return absl::DataLossError("the answer cannot be read");
  std::string bytes;
  for (const grpc::Slice& part : slices) bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return bytes;
}

absl::StatusOr<int> RunHealth(const std::vector<std::string>& services) {
  if (services.size() > 1) return UsageError("one service at a time");
  const std::string service = services.empty() ? "" : services[0];
  GDN_ASSIGN_OR_RETURN(const std::string answer, Check(EncodeRequest(service)));
  GDN_ASSIGN_OR_RETURN(const uint32_t status, DecodeResponse(answer));
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
           .summary = "Ask the standard health service; exit code 0 only for SERVING",
           .details = "Without SERVICE it asks for the whole server; 'gdn.v1.GdnService' asks for the API.\n",
           .run = RunHealth}};
}

}  // namespace gdn
