#include "state_store/state_file/sealed_header.h"

#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn::state_file {
namespace {

// The key as it stands in the header. No other text in the header can look like this, because quotes in JSON strings
// are escaped.
constexpr std::string_view kChecksumKey = "\"header_checksum\":\"";
constexpr std::string_view kNoChecksum = "00000000000000000000000000000000";

// Returns the position of header_checksum's first digit, or npos if there is no such entry.
size_t FindDigits(std::string_view header) {
  const size_t at = header.find(kChecksumKey);
  if (at == std::string_view::npos) return at;
  const size_t digits = at + kChecksumKey.size();
  return header.size() - digits > kNoChecksum.size() && header[digits + kNoChecksum.size()] == '"'
             ? digits
             : std::string_view::npos;
}

std::string HashHeader(std::string_view header, size_t digits) {
  Hasher hasher;
  hasher.Update(header.substr(0, digits));
  hasher.Update(kNoChecksum);
  hasher.Update(header.substr(digits + kNoChecksum.size()));
  return hasher.Finish().ToHex();
}

// Returns the version to write into a file.
std::string_view FormatVersionOf(const LayerDims& dims, bool has_base_dtype, bool has_tree) {
  if (has_tree) return kFormatVersionTree;
  if (dims.decays_by_channel()) return kFormatVersionByChannel;
  return has_base_dtype ? kFormatVersionBf16 : kFormatVersion;
}

}  // namespace

absl::StatusOr<std::string> SealedHeader(const std::vector<RawTensor>& tensors, Metadata metadata,
                                         const Checksums& checksums) {
  metadata["format"] = kFormat;
  GDN_ASSIGN_OR_RETURN(const LayerDims dims, ParseDims(OptionalText(metadata, "dims")));
  std::string& version = metadata["format_version"];
  version = FormatVersionOf(dims, metadata.count("base_dtype") != 0, /*has_tree=*/version == kFormatVersionTree);
  metadata["checksums"] = nlohmann::json(checksums).dump();
  metadata["header_checksum"] = kNoChecksum;
  GDN_ASSIGN_OR_RETURN(std::string header, SafetensorsHeader(tensors, metadata));
  const size_t digits = FindDigits(header);
  header.replace(digits, kNoChecksum.size(), HashHeader(header, digits));
  return header;
}

absl::StatusOr<bool> CheckHeaderChecksum(std::string_view bytes) {
  const auto end = SafetensorsHeaderEnd(bytes);
  if (!end.ok()) return false;
  const std::string_view header = bytes.substr(0, *end);
  const size_t digits = FindDigits(header);
  if (digits == std::string_view::npos) return false;
  const std::string_view found = header.substr(digits, kNoChecksum.size());
  if (const std::string expected = HashHeader(header, digits); found != expected) {
    return Damaged(StrCat("its header is damaged: header_checksum is ", found, ", and the header's is ", expected));
  }
  return true;
}

absl::StatusOr<bool> HasChecksums(const std::string& version) {
  if (version == kFormatVersionPlain) return false;
  for (const std::string_view known :
       {kFormatVersion, kFormatVersionBf16, kFormatVersionByChannel, kFormatVersionTree}) {
    if (version == known) return true;
  }
  return InvalidEntry("format_version", version, StrCat(kFormatVersionPlain, " to ", kFormatVersionTree));
}

absl::StatusOr<DType> BaseDTypeOf(const Metadata& metadata, const LayerDims& dims) {
  const std::string& version = metadata.at("format_version");
  const bool by_channel = dims.decays_by_channel();
  const bool either = version == kFormatVersionPlain || version == kFormatVersionTree;
  if (!either && (version == kFormatVersionByChannel) != by_channel) {
    return InvalidEntry("format_version", version,
                        by_channel ? StrCat(kFormatVersionByChannel, ", for dims decay by channel")
                                   : std::string("another one, for dims do not decay by channel"));
  }
  const std::string dtype = OptionalText(metadata, "base_dtype");
  const bool may_be_bf16 =
      version == kFormatVersionBf16 || version == kFormatVersionByChannel || version == kFormatVersionTree;
  if (may_be_bf16 && dtype == "BF16") return DType::kBF16;
  if (version != kFormatVersionBf16 && dtype.empty()) return DType::kF32;
  return InvalidEntry("base_dtype", dtype,
                      StrCat("BF16 in format_version ", kFormatVersionBf16, ", BF16 or none in ",
                             kFormatVersionByChannel, " and ", kFormatVersionTree, ", else none"));
}

}  // namespace gdn::state_file
