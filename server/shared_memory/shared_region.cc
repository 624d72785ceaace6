#include "server/shared_memory/shared_region.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/random_id.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status SystemRefuses(const std::string& path, std::string_view what, int error) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kSharedMemoryExhausted,
                   StrCat(path, " cannot be ", what, ": ", std::strerror(error),
                          "; send tensors in the messages, or give --shared-memory-dir more room"));
}

// Returns true if this process alone has the lock which says that the file's server lives. A server that starts may
// take a file that was just made for one that a killed server left: then the file is locked, or has lost its name.
bool LockAsServer(int fd) {
  struct stat found {};
  return flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &found) == 0 && found.st_nlink > 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Make(const std::string& directory, int64_t bytes) {
  constexpr int kAttempts = 8;
  std::string path;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string name = StrCat(kSharedRegionPrefix, RandomId());
    path = StrCat(directory, "/", name);
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0) return SystemRefuses(path, "made", errno);
    std::unique_ptr<SharedRegion> region(new SharedRegion(std::move(name), path, bytes, fd));
    if (!LockAsServer(fd)) continue;
    int error = 0;
    while ((error = posix_fallocate(fd, 0, bytes)) == EINTR) continue;
    if (error != 0) return SystemRefuses(path, StrCat("made ", bytes, " bytes long"), error);
    return region;
  }
  return SystemRefuses(path, "locked", EWOULDBLOCK);
}

SharedRegion::SharedRegion(std::string name, std::string path, int64_t bytes, int fd)
    : name_(std::move(name)), path_(std::move(path)), bytes_(bytes), fd_(fd) {}

SharedRegion::~SharedRegion() {
  Unlink();
  close(fd_);
}

void SharedRegion::Unlink() {
  if (std::exchange(linked_, false)) unlink(path_.c_str());
}

absl::Status SharedRegion::CheckRange(int64_t offset, int64_t bytes) const {
  if (offset >= 0 && bytes >= 0 && offset <= bytes_ && bytes <= bytes_ - offset) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kInvalidSharedRange,
      StrCat(bytes, " bytes at offset ", offset, " are not inside region ", name_, " of ", bytes_, " bytes"),
      {{"region", name_}, {"found", StrCat(offset, " + ", bytes)}, {"expected", StrCat("0 .. ", bytes_)}});
}

absl::Status SharedRegion::Truncated(int64_t end) const {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSharedMemoryTruncated,
                   StrCat("the file of region ", name_, " does not reach to byte ", end,
                          " any more: somebody has truncated it; nothing moved. Share new memory"),
                   {{"region", name_}});
}

absl::Status SharedRegion::CheckSize(int64_t end) const {
  struct stat found {};
  return fstat(fd_, &found) == 0 && found.st_size >= end ? absl::OkStatus() : Truncated(end);
}

absl::Status SharedRegion::Read(int64_t offset, absl::Span<char> to) const {
  for (size_t done = 0; done < to.size();) {
    const ssize_t got = pread(fd_, to.data() + done, to.size() - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Truncated(offset + static_cast<int64_t>(to.size()));
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status SharedRegion::Write(int64_t offset, std::string_view from) const {
  for (size_t done = 0; done < from.size();) {
    const ssize_t put = pwrite(fd_, from.data() + done, from.size() - done, offset + static_cast<int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return SystemRefuses(path_, "written", put < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

}  // namespace gdn
