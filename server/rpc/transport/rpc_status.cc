#include "server/rpc/transport/rpc_status.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "base/bounded_text.h"
#include "base/error.h"
#include "base/string_cat.h"
#include "google/rpc/error_details.pb.h"

namespace gdn {
namespace {

constexpr char kDomain[] = "gdn.v1";
// About two batches: no busy retries, and too short for users to notice.
constexpr int64_t kRetryDelayNanos = 100'000'000;
// Limits in bytes. If the trailers exceed 8 KiB, the client gets RESOURCE_EXHAUSTED instead of the error (gRPC's limit;
// HAProxy's is similar). The message is in the trailers twice: as text, where each byte may take three, and in the
// details, which are base64.
constexpr size_t kMostMessageBytes = 1024, kMostValueBytes = 1024, kMostMetadataBytes = 1536, kLeastValueBytes = 48;
constexpr int64_t kNanosPerMilli = 1'000'000, kNanosPerSecond = 1'000'000'000;

// Time after which a retry of the call may succeed; nullopt if waiting alone does not help.
std::optional<int64_t> RetryDelayNanos(const std::string& name, const absl::Status& status) {
  if (name == reason::kQuotaExceeded) {
    const ErrorMetadataMap metadata = ErrorMetadata(status);
    const auto after = metadata.find("retry_after_ms");
    int64_t millis = 0;
    if (after == metadata.end() || !absl::SimpleAtoi(after->second, &millis)) return std::nullopt;
    return millis * kNanosPerMilli;
  }

  constexpr std::array kReasons = {
      reason::kBytesExhausted,   reason::kStateBudgetExhausted, reason::kQueueFull,
      reason::kServerDraining,   reason::kTierUnavailable,      reason::kSharedMemoryExhausted,
      reason::kSessionElsewhere, reason::kSessionMoved,         reason::kNodeLeaseLapsed};
  if (std::find(kReasons.begin(), kReasons.end(), name) == kReasons.end()) return std::nullopt;
  return kRetryDelayNanos;
}

}  // namespace

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status result;
  result.set_code(static_cast<int>(status.code()));
  if (status.ok()) return result;
  result.set_message(BoundedText({status.message().data(), status.message().size()}, kMostMessageBytes));
  google::rpc::ErrorInfo info;
  info.set_reason(ErrorReason(status));
  if (info.reason().empty()) info.set_reason(std::string(reason::kInternal));
  info.set_domain(kDomain);
  size_t room = kMostMetadataBytes;
  for (const auto& [key, value] : ErrorMetadata(status)) {
    if (room < key.size() + kLeastValueBytes) break;
    std::string& bounded = (*info.mutable_metadata())[key];
    bounded = BoundedText(value, std::min(kMostValueBytes, room - key.size()));
    room -= key.size() + bounded.size();
  }
  result.add_details()->PackFrom(info);
  if (const auto delay = RetryDelayNanos(info.reason(), status); delay.has_value()) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(*delay / kNanosPerSecond);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(*delay % kNanosPerSecond));
    result.add_details()->PackFrom(retry);
  }
  return result;
}

std::string ReasonOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  if (status.details_size() > 0) status.details(0).UnpackTo(&info);
  return info.reason();
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status rpc = ToRpcStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(rpc.code()), rpc.message(), rpc.SerializeAsString());
}

absl::Status WithAppliedRows(absl::Status error, absl::Span<const size_t> rows) {
  constexpr size_t kMostRowBytes = 900;  // below kMostValueBytes, so the value is not cut again
  if (error.ok() || rows.empty()) return error;
  return WithMetadata(std::move(error), "applied_rows", NumberRanges(rows, kMostRowBytes));
}

}  // namespace gdn
