// The format versions of state files, and what each version promises. For this folder only.
//
// Thread safety: free functions on values.
//
//   metadata["format_version"] = FormatVersionOf(dims, /*has_base_dtype=*/false, /*has_tree=*/false);
//   GDN_ASSIGN_OR_RETURN(file.base_dtype, BaseDTypeOf(metadata, dims));
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/layer_dims.h"

namespace gdn::state_file {

inline constexpr std::string_view kFormatVersionPlain = "1";      // written by another tool; checksums are optional
inline constexpr std::string_view kFormatVersion = "2";           // checksums of the header and of every tensor
inline constexpr std::string_view kFormatVersionBf16 = "3";       // as 2, with bases of bfloat16
inline constexpr std::string_view kFormatVersionByChannel = "4";  // as 2 or 3, with a log decay for each key channel
inline constexpr std::string_view kFormatVersionTree = "5";       // as 2, 3 or 4, with a draft that is a tree

// Returns the version to write into a file.
std::string_view FormatVersionOf(const LayerDims& dims, bool has_base_dtype, bool has_tree);

// True if a file of this version must have checksums. DATA_LOSS (INVALID_STATE_FILE) if the version is unknown.
absl::StatusOr<bool> HasChecksums(const std::string& version);

// Returns the dtype of the file's bases from its base_dtype entry. `metadata` must have a format_version. DATA_LOSS
// (INVALID_STATE_FILE) if version, dims and base_dtype contradict each other.
absl::StatusOr<DType> BaseDTypeOf(const std::map<std::string, std::string>& metadata, const LayerDims& dims);

}  // namespace gdn::state_file
