#include "tools/common/child_process.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's kill
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/files/output_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(2);
constexpr absl::Duration kTermGrace = absl::Seconds(5);
constexpr size_t kLogTailBytes = 3000;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(std::vector<std::string> argv, const std::string& log_file) {
  int log = -1;
  if (!log_file.empty()) log = open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0 && !log_file.empty())
    return absl::UnavailableError(StrCat("cannot write '", log_file, "': ", std::strerror(errno)));
  int failure[2];  // closed by a successful exec, else given its errno
  if (pipe2(failure, O_CLOEXEC) != 0) {
    const int error = errno;
    if (log >= 0) close(log);
    return absl::UnavailableError(StrCat("no pipe: ", std::strerror(error)));
  }
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {  // only async-signal-safe calls from here to exec
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    if (log >= 0) {
      dup2(log, STDOUT_FILENO);
      dup2(log, STDERR_FILENO);
    }
    execvp(words[0], words.data());
    const int error = errno;
    static_cast<void>(!write(failure[1], &error, sizeof(error)));
    _exit(127);
  }
  const int fork_error = errno;
  if (log >= 0) close(log);
  close(failure[1]);
  int exec_error = 0;
  ssize_t bytes = 0;
  if (pid > 0) {
    while ((bytes = read(failure[0], &exec_error, sizeof(exec_error))) < 0 && errno == EINTR) continue;
  }
  close(failure[0]);
  if (pid < 0) return absl::UnavailableError(StrCat("cannot fork: ", std::strerror(fork_error)));
  ChildProcess child(pid, argv[0], log_file);
  if (bytes == 0) return child;
  child.Wait();
  return absl::NotFoundError(StrCat("cannot execute '", argv[0], "': ", std::strerror(exec_error)));
}

ChildProcess::~ChildProcess() {
  Signal(SIGTERM);
  for (const absl::Time deadline = absl::Now() + kTermGrace; !Exited() && absl::Now() < deadline;)
    absl::SleepFor(kPoll);
  End(SIGKILL);
}

bool ChildProcess::Reap(int options) {
  int status = 0;
  pid_t reaped = 0;
  while ((reaped = waitpid(pid_, &status, options)) < 0 && errno == EINTR) continue;
  if (reaped == 0) return false;
  if (reaped > 0) exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  pid_ = 0;
  return true;
}

bool ChildProcess::Exited() { return pid_ == 0 || Reap(WNOHANG); }

void ChildProcess::Signal(int signal) const {
  if (const pid_t pid = pid_; pid > 0) kill(pid, signal);
}

void ChildProcess::End(int signal) {
  Signal(signal);
  Wait();
}

int ChildProcess::Wait() {
  if (pid_ > 0) Reap(0);
  return exit_code_;
}

std::string ChildProcess::LogTail() const {
  const std::string log = ReadAll(log_file_);
  return StrCat(". Its last output:\n", log.size() > kLogTailBytes ? log.substr(log.size() - kLogTailBytes) : log);
}

absl::Status ChildProcess::WaitUntil(const std::function<bool()>& ready, absl::Duration timeout) {
  for (const absl::Time deadline = absl::Now() + timeout; absl::Now() < deadline; absl::SleepFor(kPoll)) {
    if (ready()) return absl::OkStatus();
    if (Exited()) return absl::UnavailableError(StrCat(name_, " exited before it listened", LogTail()));
  }
  return absl::UnavailableError(StrCat(name_, " did not listen within ", absl::FormatDuration(timeout), LogTail()));
}

absl::StatusOr<int> ChildProcess::WaitForPort(const std::string& port_file, absl::Duration timeout) {
  int port = 0;
  const auto written = [&] {
    const std::string text = ReadAll(port_file);
    return absl::EndsWith(text, "\n") && absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &port) && port >= 0;
  };
  GDN_RETURN_IF_ERROR(WaitUntil(written, timeout));
  return port;
}

absl::Status WritePortFile(const std::string& port_file, int port) {
  const absl::Status written = WriteOutputFile(port_file, StrCat(port, "\n"));
  return written.ok() ? written : absl::InvalidArgumentError(StrCat("--port-file: ", written.message()));
}

}  // namespace gdn
