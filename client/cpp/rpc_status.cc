#include "client/cpp/rpc_status.h"

#include <map>
#include <string>

#include "absl/strings/cord.h"
#include "base/error.h"
#include "google/rpc/error_details.pb.h"

namespace gdn {
namespace {

constexpr char kDomain[] = "gdn.v1";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

absl::StatusCode CanonicalCode(int code) {
  return code >= 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

absl::Status Restore(absl::StatusCode code, const std::string& message, const google::rpc::Status& details) {
  absl::Status status(code, message);
  google::rpc::ErrorInfo info;
  google::rpc::RetryInfo retry;
  for (const auto& detail : details.details()) {
    // Proxies add ErrorInfos of their own domains; those reasons are not the service's.
    if (detail.Is<google::rpc::ErrorInfo>() && detail.UnpackTo(&info) && info.domain() == kDomain) {
      status = MakeError(code, info.reason(), message);
      const std::map<std::string, std::string> sorted(info.metadata().begin(), info.metadata().end());
      for (const auto& [key, value] : sorted) status = WithMetadata(std::move(status), key, value);
      break;
    }
  }
  for (const auto& detail : details.details()) {
    if (detail.Is<google::rpc::RetryInfo>() && detail.UnpackTo(&retry)) {
      status.SetPayload(kRetryInfoUrl, absl::Cord(detail.value()));
      break;
    }
  }
  return status;
}

}  // namespace

absl::Status StatusFromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  return Restore(CanonicalCode(status.error_code()), status.error_message(), details);
}

absl::Status StatusFromRpc(const google::rpc::Status& status) {
  if (status.code() == 0) return absl::OkStatus();
  return Restore(CanonicalCode(status.code()), status.message(), status);
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo retry;
  if (!payload.has_value() || !retry.ParseFromString(static_cast<std::string>(*payload))) return std::nullopt;
  return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
}

}  // namespace gdn
