// Helpers that durable tiers share for their state files: read the header, check the owner, describe the state, and
// decide what counts as a failure.
//
// Thread safety: free functions on values.
//
//   GDN_ASSIGN_OR_RETURN(FileStart head, ReadHead(first_bytes));
//   GDN_ASSIGN_OR_RETURN(StateFile file, ParseStateFileHeader(head.bytes, head.file_bytes));
//   GDN_RETURN_IF_ERROR(CheckOwner(key, file));
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

struct FileStart {
  std::string bytes;
  int64_t file_bytes = 0;  // size of the whole file
};

// Reads the first part of a file, with its whole header. If the header's length (the first 8 bytes) is invalid, returns
// less, which the parser then refuses. `first_bytes(n)` must read the first n bytes, or all of a shorter file; its
// errors are returned.
absl::StatusOr<FileStart> ReadHead(absl::FunctionRef<absl::StatusOr<FileStart>(int64_t)> first_bytes);

// OK if the file's owner entry names the key's session. Else DATA_LOSS (INVALID_STATE_FILE: tensor): the file is
// another session's, or has no owner entry.
absl::Status CheckOwner(const StateKey& key, const StateFile& file);

// True if a durable tier counts this status as a failure (TierUsage::failures). NOT_FOUND and RESOURCE_EXHAUSTED do not
// count.
bool IsTierFailure(const absl::Status& status);

// Returns the status of a Status or StatusOr, for code that handles both; it lives as long as the argument.
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Describes the state in `file`, of which only the header must have been parsed. `bytes`: size of the key's files.
StoredSession DescribeStored(const StateKey& key, StateFile file, int64_t bytes);

}  // namespace gdn
