#include "state_store/state_file/format_version.h"

#include "base/string_cat.h"
#include "state_store/state_file/metadata.h"

namespace gdn::state_file {

std::string_view FormatVersionOf(const LayerDims& dims, bool has_base_dtype) {
  if (dims.decays_by_channel()) return kFormatVersionByChannel;
  return has_base_dtype ? kFormatVersionBf16 : kFormatVersion;
}

absl::StatusOr<bool> HasChecksums(const std::string& version) {
  if (version == kFormatVersionPlain) return false;
  if (version == kFormatVersion || version == kFormatVersionBf16 || version == kFormatVersionByChannel) return true;
  return InvalidEntry(
      "format_version", version,
      StrCat(kFormatVersionPlain, ", ", kFormatVersion, ", ", kFormatVersionBf16, " or ", kFormatVersionByChannel));
}

absl::StatusOr<DType> BaseDTypeOf(const std::map<std::string, std::string>& metadata, const LayerDims& dims) {
  const std::string& version = metadata.at("format_version");
  const bool by_channel = dims.decays_by_channel();
  if (version != kFormatVersionPlain && (version == kFormatVersionByChannel) != by_channel) {
    return InvalidEntry("format_version", version,
                        by_channel ? StrCat(kFormatVersionByChannel, ", for dims decay by channel")
                                   : std::string("another one, for dims do not decay by channel"));
  }
  const std::string dtype = OptionalText(metadata, "base_dtype");
  const bool may_be_bf16 = version == kFormatVersionBf16 || version == kFormatVersionByChannel;
  if (may_be_bf16 && dtype == "BF16") return DType::kBF16;
  if (version != kFormatVersionBf16 && dtype.empty()) return DType::kF32;
  return InvalidEntry("base_dtype", dtype,
                      StrCat("BF16 in format_version ", kFormatVersionBf16, ", BF16 or none in ",
                             kFormatVersionByChannel, ", else none"));
}

}  // namespace gdn::state_file
