// Writes a file whose path a user gave.
//
// A regular file appears under its name only when it is complete: it is written under another name in the same folder
// and then renamed. If the path is a symbolic link to a regular file, the link stays and its target is replaced.
// Devices and pipes are written directly.
// Thread safety: one thread at a time. Ownership: the destructor removes an uncommitted file.
//
//   GDN_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create("state.safetensors"));  // before the work
//   GDN_RETURN_IF_ERROR(file.Append(bytes));
//   return file.Commit();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace gdn {

class OutputFile {
 public:
  // Opens the path for writing; an existing file stays as it is until Commit. INVALID_ARGUMENT for a folder or a
  // socket, NOT_FOUND for a symbolic link to nothing. DEADLINE_EXCEEDED if nobody opens a pipe for reading within 10 s
  // (this waits for it). Otherwise the code of the system's error, such as PERMISSION_DENIED.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // Reserves disk space for a regular file of `bytes` bytes in all, before the work is done. RESOURCE_EXHAUSTED if the
  // disk is full, OUT_OF_RANGE above a file size limit. Does nothing for a device or a pipe, or if the file system
  // cannot reserve.
  absl::Status Reserve(int64_t bytes);
  // Writes all of `bytes`, and blocks until a pipe's reader has taken them; DEADLINE_EXCEEDED if it takes nothing for
  // 60 s. Else errors have the system's code, such as RESOURCE_EXHAUSTED. After an error do not call Commit: a part may
  // be written.
  absl::Status Append(std::string_view bytes);
  // Flushes a regular file to disk and renames it to its path; only closes a device or a pipe. An existing file is
  // replaced; its mode is kept. After an error (with the system's code) the existing file is as before, and the new one
  // is gone. Call at most once, last.
  absl::Status Commit();

 private:
  OutputFile(std::string path, std::string target, std::string partial, int fd)
      : path_(std::move(path)), target_(std::move(target)), partial_(std::move(partial)), fd_(fd) {}
  absl::Status Failed(int error) const;
  void Close();

  std::string path_;     // as the user gave it, for errors
  std::string target_;   // the regular file that Commit makes or replaces
  std::string partial_;  // the file's path until Commit renames it; "" for a device or a pipe
  int fd_;               // -1 after Commit, or once moved from
  int64_t reserved_ = 0;
  int64_t written_ = 0;
};

// Writes a whole file by Create, Append and Commit, with their errors.
absl::Status WriteOutputFile(const std::string& path, std::string_view bytes);

}  // namespace gdn
