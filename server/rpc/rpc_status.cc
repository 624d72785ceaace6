#include "server/rpc/rpc_status.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "google/rpc/error_details.pb.h"

namespace gdn {
namespace {

constexpr char kDomain[] = "gdn.v1";
constexpr int kRetryDelayNanos = 100'000'000;  // a batch or two; long enough not to spin, short enough not to be felt

bool IsWorthWaitingFor(const std::string& name) {
  constexpr std::array kReasons = {reason::kBytesExhausted,  reason::kStateBudgetExhausted,
                                   reason::kQueueFull,       reason::kServerDraining,
                                   reason::kTierUnavailable, reason::kSharedMemoryExhausted};
  return std::find(kReasons.begin(), kReasons.end(), name) != kReasons.end();
}

}  // namespace

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status result;
  result.set_code(static_cast<int>(status.code()));
  if (status.ok()) return result;
  result.set_message(std::string(status.message()));
  google::rpc::ErrorInfo info;
  info.set_reason(ErrorReason(status));
  if (info.reason().empty()) info.set_reason(std::string(reason::kInternal));
  info.set_domain(kDomain);
  for (const auto& [key, value] : ErrorMetadata(status)) (*info.mutable_metadata())[key] = value;
  result.add_details()->PackFrom(info);
  if (IsWorthWaitingFor(info.reason())) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_nanos(kRetryDelayNanos);
    result.add_details()->PackFrom(retry);
  }
  return result;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status rpc = ToRpcStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(rpc.code()), rpc.message(), rpc.SerializeAsString());
}

}  // namespace gdn
