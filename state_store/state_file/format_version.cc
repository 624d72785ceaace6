#include "state_store/state_file/format_version.h"

#include "base/string_cat.h"
#include "state_store/state_file/metadata.h"

namespace gdn::state_file {

std::string_view FormatVersionOf(const LayerDims& dims, bool has_base_dtype, bool has_tree) {
  if (has_tree) return kFormatVersionTree;
  if (dims.decays_by_channel()) return kFormatVersionByChannel;
  return has_base_dtype ? kFormatVersionBf16 : kFormatVersion;
}

absl::StatusOr<bool> HasChecksums(const std::string& version) {
  if (version == kFormatVersionPlain) return false;
  for (const std::string_view known :
       {kFormatVersion, kFormatVersionBf16, kFormatVersionByChannel, kFormatVersionTree}) {
    if (version == known) return true;
  }
  return InvalidEntry("format_version", version, StrCat(kFormatVersionPlain, " to ", kFormatVersionTree));
}

absl::StatusOr<DType> BaseDTypeOf(const std::map<std::string, std::string>& metadata, const LayerDims& dims) {
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
