#include "server/rpc/rpc_status.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/string_cat.h"
#include "google/rpc/error_details.pb.h"

namespace gdn {
namespace {

constexpr char kDomain[] = "gdn.v1";
constexpr int64_t kRetryDelayNanos = 100'000'000;  // a batch or two; long enough not to spin, not to be felt
constexpr int64_t kNanosPerMilli = 1'000'000, kNanosPerSecond = 1'000'000'000;

// After how long the same call may find what it was refused; nothing where waiting alone does not help.
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
  result.set_message(std::string(status.message()));
  google::rpc::ErrorInfo info;
  info.set_reason(ErrorReason(status));
  if (info.reason().empty()) info.set_reason(std::string(reason::kInternal));
  info.set_domain(kDomain);
  for (const auto& [key, value] : ErrorMetadata(status)) (*info.mutable_metadata())[key] = value;
  result.add_details()->PackFrom(info);
  if (const auto delay = RetryDelayNanos(info.reason(), status); delay.has_value()) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(*delay / kNanosPerSecond);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(*delay % kNanosPerSecond));
    result.add_details()->PackFrom(retry);
  }
  return result;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status rpc = ToRpcStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(rpc.code()), rpc.message(), rpc.SerializeAsString());
}

absl::Status WithAppliedRows(absl::Status error, absl::Span<const size_t> rows) {
  constexpr size_t kMostCharacters = 1024;  // of a trailer that transports may limit to 8 KiB
  if (error.ok() || rows.empty()) return error;
  std::string text;
  for (size_t i = 0; i < rows.size();) {
    size_t last = i;
    while (last + 1 < rows.size() && rows[last + 1] == rows[last] + 1) ++last;
    if (!text.empty()) text += ',';
    if (text.size() > kMostCharacters) {
      text += "..";
      break;
    }
    text += last == i ? StrCat(rows[i]) : StrCat(rows[i], "-", rows[last]);
    i = last + 1;
  }
  return WithMetadata(std::move(error), "applied_rows", text);
}

}  // namespace gdn
