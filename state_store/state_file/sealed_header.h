// Makes and checks the header of a state file, which contains its own checksum, and says what each format version
// promises. For this folder only.
//
// Thread safety: free functions on values.
//
//   GDN_ASSIGN_OR_RETURN(std::string header, SealedHeader(tensors, metadata, checksums));
//   GDN_ASSIGN_OR_RETURN(const bool sealed, CheckHeaderChecksum(bytes));
//   GDN_ASSIGN_OR_RETURN(file.base_dtype, BaseDTypeOf(metadata, dims));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/files/safetensors.h"
#include "base/layer_dims.h"
#include "state_store/state_file/metadata.h"

namespace gdn::state_file {

inline constexpr std::string_view kFormatVersionPlain = "1";      // written by another tool; checksums are optional
inline constexpr std::string_view kFormatVersion = "2";           // checksums of the header and of every tensor
inline constexpr std::string_view kFormatVersionBf16 = "3";       // as 2, with bases of bfloat16
inline constexpr std::string_view kFormatVersionByChannel = "4";  // as 2 or 3, with a log decay for each key channel
inline constexpr std::string_view kFormatVersionTree = "5";       // as 2, 3 or 4, with a draft that is a tree

// Returns the header of a file with these tensors and checksums: 8 bytes with its length, then its text. Sets
// format_version from the metadata's dims and base_dtype, but leaves kFormatVersionTree as it is. Errors of ParseDims
// and SafetensorsHeader.
absl::StatusOr<std::string> SealedHeader(const std::vector<RawTensor>& tensors, Metadata metadata,
                                         const Checksums& checksums);
// True if the file has a header_checksum. DATA_LOSS (INVALID_STATE_FILE) if that is not the header's. Searches the raw
// text, because an unverified header must not be parsed. False for a file that is too short: the parser reports that.
absl::StatusOr<bool> CheckHeaderChecksum(std::string_view bytes);

// True if a file of this version must have checksums. DATA_LOSS (INVALID_STATE_FILE) if the version is unknown.
absl::StatusOr<bool> HasChecksums(const std::string& version);

// Returns the dtype of the file's bases from its base_dtype entry. `metadata` must have a format_version. DATA_LOSS
// (INVALID_STATE_FILE) if version, dims and base_dtype contradict each other.
absl::StatusOr<DType> BaseDTypeOf(const Metadata& metadata, const LayerDims& dims);

}  // namespace gdn::state_file
