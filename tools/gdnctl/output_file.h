// A file that appears under its name only when it is whole.
//
// Thread safety: for one thread at a time. Ownership: an uncommitted file is removed on destruction.
//
//   GDN_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create("state.safetensors"));
//   GDN_RETURN_IF_ERROR(file.Append(bytes));
//   return file.Commit();
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace gdn {

class OutputFile {
 public:
  // Writes to "PATH.partial" beside it. The error of the system call, with the path.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept = default;
  ~OutputFile();

  absl::Status Append(std::string_view bytes);
  // Flushes it to the disk, closes it and gives it its name; an existing file is replaced.
  absl::Status Commit();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  OutputFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  std::string partial() const { return path_ + ".partial"; }

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;  // null once committed, failed or moved from
};

}  // namespace gdn
