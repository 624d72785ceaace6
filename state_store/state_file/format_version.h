// The versions of a state file's format: which one a file is of, and what each promises. For this folder alone.
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

inline constexpr std::string_view kFormatVersionPlain = "1";      // another tool's, with or without checksums
inline constexpr std::string_view kFormatVersion = "2";           // checksums of everything
inline constexpr std::string_view kFormatVersionBf16 = "3";       // as 2, with bases of bfloat16
inline constexpr std::string_view kFormatVersionByChannel = "4";  // as 2 or 3, with a log decay for each key channel
inline constexpr std::string_view kFormatVersionTree = "5";       // as 2, 3 or 4, with a draft that is a tree

// That of a file that is written.
std::string_view FormatVersionOf(const LayerDims& dims, bool has_base_dtype, bool has_tree);

// Whether a file of this version must have checksums; DATA_LOSS (INVALID_STATE_FILE) for one that there is not.
absl::StatusOr<bool> HasChecksums(const std::string& version);

// By the base_dtype entry, of metadata that have a version; DATA_LOSS (INVALID_STATE_FILE) where version, dims and
// base_dtype do not go together.
absl::StatusOr<DType> BaseDTypeOf(const std::map<std::string, std::string>& metadata, const LayerDims& dims);

}  // namespace gdn::state_file
