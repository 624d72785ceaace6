// A session's own state file, wherever a durable tier keeps it: how its header is read, whose it is, what a listing
// says, what counts as a failure.
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
  int64_t file_bytes = 0;  // of the whole file
};

// As much of a file as its header takes, as its first 8 bytes tell; where those make no sense, less: the parser says
// so.
// `first_bytes` reads so many bytes from its begin, or the whole file where it is shorter, and gives its own errors.
absl::StatusOr<FileStart> ReadHead(absl::FunctionRef<absl::StatusOr<FileStart>(int64_t)> first_bytes);

// DATA_LOSS (INVALID_STATE_FILE: tensor) where the file is another session's, or nobody's.
absl::Status CheckOwner(const StateKey& key, const StateFile& file);

// Whether a durable tier's answer counts among its failures (TierUsage): what is not there, or does not fit, is an
// answer and no failure.
bool IsTierFailure(const absl::Status& status);

// Of the header of a file of so many bytes.
StoredSession DescribeStored(const StateKey& key, StateFile file, int64_t bytes);

}  // namespace gdn
