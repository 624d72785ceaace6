#include "tools/gdnctl/key_watch.h"

#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's raise and sigaction
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace gdn {
namespace {

termios g_before;  // for the handler, which gets no argument

void RestoreAndEnd(int signal) {
  tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

KeyWatch::KeyWatch() {
  if (isatty(STDIN_FILENO) == 0 || tcgetattr(STDIN_FILENO, &g_before) != 0) return;
  termios silent = g_before;
  silent.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, &RestoreAndEnd);
  watching_ = tcsetattr(STDIN_FILENO, TCSANOW, &silent) == 0;
}

KeyWatch::~KeyWatch() {
  if (!watching_) return;
  tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
}

bool KeyWatch::WaitFor(char key, absl::Duration time) {
  const absl::Time end = absl::Now() + time;
  for (;;) {
    const absl::Duration left = end - absl::Now();
    if (!watching_) {
      absl::SleepFor(left);
      return false;
    }
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const auto milliseconds =
        absl::ToInt64Milliseconds(absl::Ceil(std::max(left, absl::ZeroDuration()), absl::Milliseconds(1)));
    const int ready = poll(&input, 1, static_cast<int>(std::min<int64_t>(milliseconds, 1'000'000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready > 0) {
      char typed = 0;
      const ssize_t bytes = read(STDIN_FILENO, &typed, 1);
      if (bytes == 1 && typed == key) return true;
      if (bytes <= 0) watching_ = false;  // the terminal has gone
      continue;
    }
    if (left <= absl::ZeroDuration()) return false;
  }
}

}  // namespace gdn
