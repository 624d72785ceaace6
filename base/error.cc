#include "base/error.h"

#include "absl/strings/cord.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Payload type URLs. Metadata keys follow the prefix; ErrorMetadata collects them into an ordered map.
constexpr absl::string_view kReasonUrl = "gdn.reason";
constexpr absl::string_view kMetadataPrefix = "gdn.metadata/";

}  // namespace

absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       std::initializer_list<std::pair<std::string_view, std::string>> metadata) {
  absl::Status status(code, AbslView(message));
  status.SetPayload(kReasonUrl, absl::Cord(AbslView(reason)));
  for (const auto& [key, value] : metadata) status.SetPayload(StrCat(kMetadataPrefix, key), absl::Cord(value));
  return status;
}

absl::Status WithMetadata(absl::Status status, std::string_view key, std::string_view value) {
  status.SetPayload(StrCat(kMetadataPrefix, key), absl::Cord(AbslView(value)));  // does nothing on an OK status
  return status;
}

absl::Status WithPrefix(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  absl::Status prefixed(status.code(), StrCat(prefix, ": ", status.message()));
  status.ForEachPayload(
      [&prefixed](absl::string_view url, const absl::Cord& payload) { prefixed.SetPayload(url, payload); });
  return prefixed;
}

std::string ErrorReason(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonUrl);
  return payload.has_value() ? std::string(*payload) : std::string();
}

ErrorMetadataMap ErrorMetadata(const absl::Status& status) {
  ErrorMetadataMap metadata;
  status.ForEachPayload([&metadata](absl::string_view url, const absl::Cord& payload) {
    if (url.substr(0, kMetadataPrefix.size()) != kMetadataPrefix) return;
    metadata.emplace(std::string(url.substr(kMetadataPrefix.size())), std::string(payload));
  });
  return metadata;
}

}  // namespace gdn
