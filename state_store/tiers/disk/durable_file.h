// Reads files, and replaces them atomically: after any failure, a file has its old or its new contents.
//
// Errors: RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if the disk is full, UNAVAILABLE (TIER_UNAVAILABLE: tier, path)
// for any other failure, with the system's error message.
// Thread safety: free functions; the caller must order calls for the same file. Ownership: values.
//
//   GDN_RETURN_IF_ERROR(MakeFolder("/state/sessions"));
//   GDN_RETURN_IF_ERROR(ReplaceFile("/state/sessions", "a.safetensors", pieces).status);
//   GDN_ASSIGN_OR_RETURN(std::string again, ReadSmallFile("/state/sessions/a.safetensors"));
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/owned_fd.h"
#include "base/threads/thread_pool.h"

namespace gdn {

inline constexpr std::string_view kTemporarySuffix = ".tmp";

absl::Status IoError(int error, std::string_view action, const std::string& path);

// Opens a file to read. NOT_FOUND if there is none. SizeOf and ReadAt take what it returns; SizeOf's `path` is for its
// error.
absl::StatusOr<OwnedFd> OpenToRead(const std::string& path);
absl::StatusOr<int64_t> SizeOf(const OwnedFd& file, const std::string& path);
// Reads [offset, offset + size) of the file into `to`, or up to its end. Returns the number of bytes read, or -1 and
// sets errno.
ssize_t ReadAt(const OwnedFd& file, char* to, size_t size, uint64_t offset);

// Reads a whole file into memory that `room(bytes)` returns, in parts on `pool` unless that is nullptr, and returns a
// view of that memory. NOT_FOUND if there is no such file; errors of `room`. The file is not mapped, so a file that
// shrinks meanwhile gives fewer bytes and no SIGBUS.
absl::StatusOr<std::string_view> ReadFile(const std::string& path,
                                          absl::FunctionRef<absl::StatusOr<char*>(size_t)> room,
                                          SharedThreadPool* pool = nullptr);
// Reads a small file into a string. Errors as of ReadFile.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);
// Reads the first `bytes` bytes of a file, or all of a shorter one. Sets `file_bytes` to the file's size. Errors as of
// ReadFile.
absl::StatusOr<std::string> ReadFileStart(const std::string& path, int64_t bytes, int64_t& file_bytes);

struct ReplaceResult {
  absl::Status status;
  // True if the new file has its name. If `status` is then an error, the file may be lost in a crash of the machine.
  bool replaced = false;
};
// Writes the pieces to a temporary file in `folder`, syncs it, renames it to `name` and syncs the folder. If a step
// before the rename fails, the old file is unchanged and the temporary one is removed. Only the file's owner can read
// it.
ReplaceResult ReplaceFile(const std::string& folder, const std::string& name,
                          const std::vector<std::string_view>& pieces);

absl::Status SyncFolder(const std::string& folder);
// Returns the entries of a folder, in no order; none if there is no such folder or it is a file.
absl::StatusOr<std::vector<std::filesystem::directory_entry>> ListFolder(const std::string& folder);
// Makes the folder, for its owner alone, unless the name exists. Its parent must exist. Durable only after SyncFolder
// of the parent.
absl::Status MakeFolder(const std::string& folder);
// Removes the file. OK if there is none. Durable only after SyncFolder of its folder.
absl::Status RemoveFile(const std::string& path);

}  // namespace gdn
