#include "server/validation/names.h"

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::string_view kSessionPrefix = "sessions/";
constexpr std::string_view kModelPrefix = "models/";
constexpr std::string_view kLeasePrefix = "leases/";

absl::Status Refuse(std::string_view field, std::string_view value, std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidName,
                   StrCat(field, " is '", Shown(value), "', expected ", expected),
                   {{"field", std::string(field)}, {"value", Shown(value)}});
}

absl::Status CheckId(std::string_view field, std::string_view id, size_t max_length) {
  if (IsId(id, max_length)) return absl::OkStatus();
  return Refuse(field, id, StrCat("at most ", max_length, " characters of [A-Za-z0-9._~-]"));
}

absl::StatusOr<std::string_view> ParseName(std::string_view field, std::string_view prefix, std::string_view name) {
  const bool has_prefix = name.substr(0, prefix.size()) == prefix;
  const std::string_view id = has_prefix ? name.substr(prefix.size()) : std::string_view();
  if (id.empty() || !CheckId(field, id, kMaxSessionIdLength).ok()) {
    return Refuse(
        field, name,
        StrCat("'", prefix, "ID' with an ID of 1 .. ", kMaxSessionIdLength, " characters of [A-Za-z0-9._~-]"));
  }
  return id;
}

}  // namespace

std::string SessionName(std::string_view id) { return StrCat(kSessionPrefix, id); }
std::string ModelName(std::string_view id) { return StrCat(kModelPrefix, id); }
std::string LeaseName(std::string_view id) { return StrCat(kLeasePrefix, id); }

absl::StatusOr<std::string_view> ParseSessionName(std::string_view name) {
  return ParseName("session", kSessionPrefix, name);
}
absl::StatusOr<std::string_view> ParseModelName(std::string_view name) {
  return ParseName("model", kModelPrefix, name);
}
absl::StatusOr<std::string_view> ParseLeaseName(std::string_view name) {
  return ParseName("lease", kLeasePrefix, name);
}

absl::Status CheckSessionId(std::string_view id) { return CheckId("session_id", id, kMaxSessionIdLength); }
absl::Status CheckLeaseId(std::string_view id) { return CheckId("lease_id", id, kMaxSessionIdLength); }
absl::Status CheckRequestId(std::string_view id) { return CheckId("request_id", id, kMaxRequestIdLength); }

absl::Status CheckCheckpointId(std::string_view id) { return CheckId("checkpoint_id", id, kMaxSessionIdLength); }

absl::Status CheckNamedCheckpointId(std::string_view id) {
  if (!id.empty()) return CheckCheckpointId(id);
  return Refuse("checkpoint_id", id, "the id of a named checkpoint; the newest, which has none, goes with its session");
}

absl::Status CheckSnapshotKey(std::string_view key) {
  if (!key.empty() && IsId(key, kMaxSessionIdLength)) return absl::OkStatus();
  return Refuse("key", key, StrCat("1 .. ", kMaxSessionIdLength, " characters of [A-Za-z0-9._~-]"));
}

absl::Status CheckAffinity(std::string_view affinity) {
  if (IsPrintable(affinity, kMaxAffinityLength)) return absl::OkStatus();
  return Refuse("affinity", affinity, StrCat("at most ", kMaxAffinityLength, " printable ASCII characters"));
}

}  // namespace gdn
