#include "tests/integration/support/full_disk.h"

#include <fcntl.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <optional>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"

extern "C" {
int __real_open(const char* path, int flags, ...);
ssize_t __real_pwritev(int fd, const iovec* parts, int count, off_t offset);
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_fsync(int fd);
int __real_mkdir(const char* path, mode_t mode);
}

namespace gdn {
namespace {

absl::Mutex mu(absl::kConstInit);
std::optional<FullDisk::Options>& Active() {
  static auto* const active = new std::optional<FullDisk::Options>();  // never destroyed: threads may outlive main
  return *active;
}
int64_t counted = 0;

// Counts the call if it is of the kind. True if it must fail.
bool Fails(FullDisk::Lacks needs, const std::string& path) {
  absl::MutexLock lock(&mu);
  const auto& active = Active();
  if (!active.has_value() || active->lacks != needs || !path.starts_with(active->folder)) return false;
  const int64_t call = counted++;
  return active->once ? call == active->after : call >= active->after;
}

bool FailsOf(FullDisk::Lacks needs, int fd) {
  std::error_code error;
  return Fails(needs, std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error).string());
}

int Error(int code) {
  errno = code;
  return -1;
}

}  // namespace

FullDisk::FullDisk(const Options& options) {
  absl::MutexLock lock(&mu);
  Active() = options;
  counted = 0;
}

void FullDisk::Free() {
  absl::MutexLock lock(&mu);
  Active().reset();
}

int64_t FullDisk::calls() const {
  absl::MutexLock lock(&mu);
  return counted;
}

}  // namespace gdn

using gdn::FullDisk;

extern "C" {

int __wrap_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  if (gdn::Fails(FullDisk::Lacks::kDescriptors, path)) return gdn::Error(EMFILE);
  const bool makes = (flags & O_CREAT) != 0 && access(path, F_OK) != 0;
  if (makes && gdn::Fails(FullDisk::Lacks::kInodes, path)) return gdn::Error(ENOSPC);
  return __real_open(path, flags, mode);
}

ssize_t __wrap_pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return gdn::FailsOf(FullDisk::Lacks::kSpace, fd) ? gdn::Error(ENOSPC) : __real_pwritev(fd, parts, count, offset);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return gdn::FailsOf(FullDisk::Lacks::kSpace, fd) ? gdn::Error(ENOSPC) : __real_fallocate(fd, mode, offset, bytes);
}

int __wrap_fsync(int fd) { return gdn::FailsOf(FullDisk::Lacks::kSpace, fd) ? gdn::Error(ENOSPC) : __real_fsync(fd); }

int __wrap_mkdir(const char* path, mode_t mode) {
  const bool makes = access(path, F_OK) != 0;
  return makes && gdn::Fails(FullDisk::Lacks::kInodes, path) ? gdn::Error(ENOSPC) : __real_mkdir(path, mode);
}
}
