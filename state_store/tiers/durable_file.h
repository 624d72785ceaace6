// Files that are what they were or what they become, and never something between, whatever fails in the meantime.
//
// Errors: RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where the disk is full, UNAVAILABLE (TIER_UNAVAILABLE: tier,
// path) for any other failure, with the system's own words.
// Thread safety: free functions; calls that name the same file are the caller's to order. Ownership: values.
//
//   GDN_RETURN_IF_ERROR(MakeFolder("/state/sessions"));
//   GDN_RETURN_IF_ERROR(ReplaceFile("/state/sessions", "a.safetensors", pieces).status);
//   GDN_ASSIGN_OR_RETURN(std::string again, ReadSmallFile("/state/sessions/a.safetensors"));
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/thread_pool.h"

namespace gdn {

inline constexpr std::string_view kTemporarySuffix = ".tmp";

absl::Status IoError(int error, std::string_view action, const std::string& path);

// NOT_FOUND where there is no such file. `room` gives the memory that it is read to, of so many bytes. A file and not a
// mapping: one that shrinks while it is read is cut short, and no SIGBUS. Its parts are read on `pool`, where there is
// one.
absl::StatusOr<std::string_view> ReadFile(const std::string& path,
                                          absl::FunctionRef<absl::StatusOr<char*>(size_t)> room,
                                          SharedThreadPool* pool = nullptr);
// The same for one that is small.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);
// Its first `bytes`, or all of it where it has fewer; `file_bytes`: how many it has.
absl::StatusOr<std::string> ReadFileStart(const std::string& path, int64_t bytes, int64_t& file_bytes);

struct ReplaceResult {
  absl::Status status;
  // The new file stands under its name, though `status` may say that it is not known to outlive a crash of the machine.
  bool replaced = false;
};
// Writes the pieces to a temporary name in `folder`, and renames it to `name` once the disk has it. Where that fails,
// the old file is untouched and the temporary one is gone.
ReplaceResult ReplaceFile(const std::string& folder, const std::string& name,
                          const std::vector<std::string_view>& pieces);

absl::Status SyncFolder(const std::string& folder);
// Makes the folder, whose parent exists, unless it is there. Not durable before SyncFolder of the parent.
absl::Status MakeFolder(const std::string& folder);
// OK where there is none. Not durable before SyncFolder.
absl::Status RemoveFile(const std::string& path);

}  // namespace gdn
