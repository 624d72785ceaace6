// The checksums of a state file's header and tensors, as they stand in its metadata. For this folder alone.
//
// Thread safety: free functions on values.
//
//   GDN_ASSIGN_OR_RETURN(std::string header, SealedHeader(tensors, metadata, checksums));
//   GDN_ASSIGN_OR_RETURN(bool sealed, CheckHeaderChecksum(header));
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/safetensors.h"
#include "state_store/state_file/metadata.h"

namespace gdn::state_file {

using Checksums = std::map<std::string, std::string>;  // hexadecimal, by tensor

// The header of a version 2 file with these tensors, whose checksums are given: the 8 bytes of its length and its text.
absl::StatusOr<std::string> SealedHeader(const std::vector<RawTensor>& tensors, Metadata metadata,
                                         const Checksums& checksums);
// Whether the file has a header_checksum; DATA_LOSS where it has one that is not the header's. Looks at the raw text,
// for nothing of it is believed before. A file too short for its header passes: the parser has more to say about it.
absl::StatusOr<bool> CheckHeaderChecksum(std::string_view bytes);
absl::StatusOr<Checksums> ParseChecksums(const std::string& text);

}  // namespace gdn::state_file
