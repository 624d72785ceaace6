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
  // Opens the path for writing; an existing file stays as it is until Commit. Errors say why it cannot be written: a
  // folder, a symbolic link to nothing, no permission, a pipe that nobody opens for reading within 10 s.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // Reserves `bytes` of disk space for a regular file, so that a full disk or a file size limit shows before the work
  // is done. Does nothing for a device or a pipe, or if the file system cannot reserve.
  absl::Status Reserve(int64_t bytes);
  // Writes all of `bytes`. DEADLINE_EXCEEDED if a pipe's reader takes nothing for 60 s.
  absl::Status Append(std::string_view bytes);
  // Flushes a regular file to disk and renames it to its path. An existing file is replaced; its mode is kept.
  absl::Status Commit();

 private:
  OutputFile(std::string path, std::string target, std::string partial, int fd)
      : path_(std::move(path)), target_(std::move(target)), partial_(std::move(partial)), fd_(fd) {}
  absl::Status Failed(int error) const;
  void Close();

  std::string path_;     // as the user gave it, for errors
  std::string target_;   // the regular file that Commit makes or replaces
  std::string partial_;  // the file's path until Commit renames it; "" for a device or a pipe
  int fd_;               // -1 once committed, failed or moved from
  int64_t reserved_ = 0;
  int64_t written_ = 0;
};

// Writes a whole file by Create, Append and Commit. Errors are theirs.
absl::Status WriteOutputFile(const std::string& path, std::string_view bytes);

}  // namespace gdn
