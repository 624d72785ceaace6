#include "base/files/user_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/string_cat.h"
#include "base/threads/steady_clock.h"

namespace gdn {
namespace {

constexpr absl::Duration kWaitForWriter = absl::Seconds(10);  // a shell starts both ends of a pipe within this
constexpr absl::Duration kPollPipe = absl::Milliseconds(20);

absl::Status CannotRead(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(StrCat("cannot read '", path, "': ", why));
}

absl::Status CannotRead(const std::string& path, int error) {
  return absl::ErrnoToStatus(error, StrCat("cannot read '", path, "'"));
}

}  // namespace

absl::StatusOr<std::string> ReadUserFile(const std::string& path, size_t most) {
  // O_NONBLOCK: opening a pipe must not wait for its writer. It means nothing for a regular file.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return CannotRead(path, errno);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0) return CannotRead(path, errno);
  if (S_ISDIR(info.st_mode)) return CannotRead(path, "it is a folder, expected a file");

  std::string text;
  std::array<char, 1 << 16> part;
  SteadyTime deadline = SteadyNow() + kWaitForWriter;
  while (true) {
    const ssize_t got = read(fd, part.data(), part.size());
    if (got > 0) {
      text.append(part.data(), static_cast<size_t>(got));
      if (text.size() > most) return CannotRead(path, StrCat("it has more than ", most, " bytes"));
      deadline = SteadyNow() + kWaitForWriter;
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != EAGAIN) return CannotRead(path, errno);
    // A pipe reads as ended as long as no writer has opened it.
    const bool no_writer_yet = got == 0 && S_ISFIFO(info.st_mode) && text.empty();
    if (got == 0 && !no_writer_yet) return text;
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(StrCat("cannot read '", path, "': nothing has come through this pipe for ",
                                                absl::FormatDuration(kWaitForWriter)));
    }
    if (no_writer_yet) {
      absl::SleepFor(kPollPipe);
    } else {
      struct pollfd writer = {.fd = fd, .events = POLLIN, .revents = 0};
      poll(&writer, 1, static_cast<int>(absl::ToInt64Milliseconds(kPollPipe)));
    }
  }
}

}  // namespace gdn
