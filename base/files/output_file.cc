#include "base/files/output_file.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <initializer_list>
#include <system_error>

#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, for sets of signals

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/steady_clock.h"

namespace gdn {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kWaitForReader = absl::Seconds(10);  // a shell starts both ends of a pipe within this
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr int kStalledMillis = 60'000;  // a reader that takes nothing for this long has stopped

absl::Status CannotWrite(const std::string& path, int error) {
  // A path through something that is not a folder names no file.
  if (error == ENOTDIR) return absl::NotFoundError(StrCat("cannot write '", path, "': a part of it is not a folder"));
  return absl::ErrnoToStatus(error, StrCat("cannot write '", path, "'"));
}

// Keeps SIGPIPE and SIGXFSZ from ending the process while it writes: the write itself then says what is wrong.
class WriteSignalsBlocked {
 public:
  WriteSignalsBlocked() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGPIPE);
    sigaddset(&signals_, SIGXFSZ);
    sigpending(&pending_);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~WriteSignalsBlocked() {
    for (const int signal : {SIGPIPE, SIGXFSZ}) {
      if (sigismember(&pending_, signal) == 1) continue;  // it was there before
      sigset_t one;
      sigemptyset(&one);
      sigaddset(&one, signal);
      const struct timespec now = {.tv_sec = 0, .tv_nsec = 0};
      while (sigtimedwait(&one, nullptr, &now) < 0 && errno == EINTR) continue;
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WriteSignalsBlocked(const WriteSignalsBlocked&) = delete;
  WriteSignalsBlocked& operator=(const WriteSignalsBlocked&) = delete;

 private:
  sigset_t signals_, pending_, before_;
};

// Opens a pipe or a device, never creating or truncating anything.
absl::StatusOr<int> OpenThrough(const std::string& path) {
  const SteadyTime deadline = SteadyNow() + kWaitForReader;
  while (true) {
    const int fd = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) return fd;
    if (errno != ENXIO && errno != EINTR) return CannotWrite(path, errno);
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(StrCat("cannot write '", path,
                                                "': nobody has opened this pipe for reading within ",
                                                absl::FormatDuration(kWaitForReader), "; start its reader first"));
    }
    absl::SleepFor(kPoll);
  }
}

// The file that a path means behind all symbolic links; the path itself if nothing is there.
absl::StatusOr<std::string> TargetOf(const std::string& path) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::symlink) return path;
  const fs::path target = fs::canonical(path, error);
  if (!error) return target.string();
  std::error_code unread;
  return absl::NotFoundError(StrCat("cannot write '", path, "': it is a symbolic link to '",
                                    fs::read_symlink(path, unread).string(),
                                    "', which is not there; make that file, or remove the link"));
}

}  // namespace

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  struct stat found {};
  const bool exists = stat(path.c_str(), &found) == 0;  // of what symbolic links lead to
  if (!exists && errno != ENOENT) return CannotWrite(path, errno);
  if (exists ? S_ISDIR(found.st_mode) : !fs::path(path).has_filename()) {
    return absl::InvalidArgumentError(StrCat("cannot write '", path, "': it is a folder; name a file in it"));
  }
  if (exists && S_ISSOCK(found.st_mode)) {
    return absl::InvalidArgumentError(StrCat("cannot write '", path, "': it is a socket; name a file or a pipe"));
  }
  if (exists && !S_ISREG(found.st_mode)) {
    GDN_ASSIGN_OR_RETURN(const int fd, OpenThrough(path));
    return OutputFile(path, path, "", fd);
  }
  GDN_ASSIGN_OR_RETURN(const std::string target, TargetOf(path));
  // A rename needs only the folder's permission; a file that its owner has locked stays as it is nevertheless.
  if (exists && faccessat(AT_FDCWD, target.c_str(), W_OK, AT_EACCESS) != 0) return CannotWrite(path, errno);
  // A short name that nobody can guess: it fits where the file's own name does, and no other writer has it.
  const std::string partial =
      (fs::path(target).parent_path() / StrCat(".gdn-", RandomId().substr(0, 16), ".partial")).string();
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return CannotWrite(path, errno);
  OutputFile file(path, target, partial, fd);
  if (exists && fchmod(fd, found.st_mode & 07777) != 0) return CannotWrite(path, errno);
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      partial_(std::exchange(other.partial_, "")),
      fd_(std::exchange(other.fd_, -1)),
      reserved_(other.reserved_),
      written_(other.written_) {}

OutputFile::~OutputFile() { Close(); }

void OutputFile::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  if (!partial_.empty()) unlink(std::exchange(partial_, "").c_str());
}

absl::Status OutputFile::Failed(int error) const { return CannotWrite(path_, error); }

absl::Status OutputFile::Reserve(int64_t bytes) {
  if (partial_.empty() || bytes <= reserved_) return absl::OkStatus();
  const WriteSignalsBlocked blocked;
  if (fallocate(fd_, 0, 0, bytes) == 0) {
    reserved_ = bytes;
  } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    return Failed(errno);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Append(std::string_view bytes) {
  const WriteSignalsBlocked blocked;
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
      written_ += written;
    } else if (errno == EAGAIN) {
      struct pollfd reader = {.fd = fd_, .events = POLLOUT, .revents = 0};
      if (poll(&reader, 1, kStalledMillis) != 0) continue;
      return absl::DeadlineExceededError(
          StrCat("cannot write '", path_, "': its reader has taken nothing for ", kStalledMillis / 1000, " s"));
    } else if (errno != EINTR) {
      return Failed(errno);
    }
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (partial_.empty()) {
    if (close(std::exchange(fd_, -1)) != 0) return Failed(errno);
    return absl::OkStatus();
  }
  // The file is on the disk before it has its name: a crash would otherwise leave the name of an empty file.
  const bool done = (reserved_ <= written_ || ftruncate(fd_, written_) == 0) && fsync(fd_) == 0 &&
                    close(std::exchange(fd_, -1)) == 0 && std::rename(partial_.c_str(), target_.c_str()) == 0;
  const absl::Status status = done ? absl::OkStatus() : Failed(errno);
  if (done) partial_.clear();
  Close();
  return status;
}

absl::Status WriteOutputFile(const std::string& path, std::string_view bytes) {
  GDN_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  GDN_RETURN_IF_ERROR(file.Append(bytes));
  return file.Commit();
}

}  // namespace gdn
