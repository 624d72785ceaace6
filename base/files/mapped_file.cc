#include "base/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "base/files/fresh_mapping.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status SystemError(int error, std::string_view action, const std::string& path) {
  const std::string message = StrCat("cannot ", action, " '", path, "'");
  // A path through something that is not a folder names no file.
  if (error == ENOTDIR) return absl::NotFoundError(StrCat(message, ": Not a directory"));
  return absl::ErrnoToStatus(error, message);
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must fail below, not wait for its writer. It means nothing for a regular file.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(errno, "open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };  // the mapping outlives the descriptor
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(StrCat("'", path, "' is not a regular file; expected a file to read"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(path, std::string_view());  // mmap refuses a length of zero
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return SystemError(errno, "map", path);
  ForgetOldMarks(data, size);
  return MappedFile(path, std::string_view(static_cast<const char*>(data), size));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace gdn
