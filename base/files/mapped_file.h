// A read-only memory-mapped file.
//
// Thread safety: immutable after Open. Ownership: unmaps on destruction; views into bytes() must not outlive it.
// The file must not be truncated while mapped (reading past its new end raises SIGBUS).
//
//   GDN_ASSIGN_OR_RETURN(auto file, MappedFile::Open("model.safetensors"));
//   std::string_view bytes = file.bytes();
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace gdn {

class MappedFile {
 public:
  // Maps the whole file; bytes() of an empty file is "". Errors name the path: INVALID_ARGUMENT if it is not a regular
  // file, else the code of the system's error, such as NOT_FOUND or PERMISSION_DENIED.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile other) noexcept {
    std::swap(path_, other.path_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::string_view bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, std::string_view bytes) : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::string_view bytes_;
};

}  // namespace gdn
