#include "state_store/state_file/checksums.h"

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn::state_file {
namespace {

using Json = nlohmann::json;

// As it stands in the header. No other text of the header can be this: quotes inside JSON strings are escaped.
constexpr std::string_view kKey = "\"header_checksum\":\"";
constexpr std::string_view kZeros = "00000000000000000000000000000000";

// Where the digits of header_checksum begin; npos where there is none.
size_t FindDigits(std::string_view header) {
  const size_t at = header.find(kKey);
  if (at == std::string_view::npos) return at;
  const size_t digits = at + kKey.size();
  return header.size() - digits > kZeros.size() && header[digits + kZeros.size()] == '"' ? digits
                                                                                         : std::string_view::npos;
}

std::string HashHeader(std::string_view header, size_t digits) {
  Hasher hasher;
  hasher.Update(header.substr(0, digits));
  hasher.Update(kZeros);
  hasher.Update(header.substr(digits + kZeros.size()));
  return hasher.Finish().ToHex();
}

}  // namespace

absl::StatusOr<std::string> SealedHeader(const std::vector<RawTensor>& tensors, Metadata metadata,
                                         const Checksums& checksums) {
  metadata["format"] = kFormat;
  metadata["format_version"] = kFormatVersion;
  metadata["checksums"] = Json(checksums).dump();
  metadata["header_checksum"] = kZeros;
  GDN_ASSIGN_OR_RETURN(std::string header, SafetensorsHeader(tensors, metadata));
  const size_t digits = FindDigits(header);
  header.replace(digits, kZeros.size(), HashHeader(header, digits));
  return header;
}

absl::StatusOr<bool> CheckHeaderChecksum(std::string_view bytes) {
  const auto end = SafetensorsHeaderEnd(bytes);
  if (!end.ok()) return false;
  const std::string_view header = bytes.substr(0, *end);
  const size_t digits = FindDigits(header);
  if (digits == std::string_view::npos) return false;
  const std::string_view found = header.substr(digits, kZeros.size());
  if (const std::string expected = HashHeader(header, digits); found != expected) {
    return Damaged(StrCat("its header is damaged: header_checksum is ", found, ", and the header's is ", expected));
  }
  return true;
}

absl::StatusOr<Checksums> ParseChecksums(const std::string& text) {
  const Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidEntry("checksums", text, "a JSON object");
  Checksums checksums;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_string()) return InvalidEntry("checksums", text, "hexadecimal digits for each tensor");
    checksums.emplace(name, value.get<std::string>());
  }
  return checksums;
}

}  // namespace gdn::state_file
