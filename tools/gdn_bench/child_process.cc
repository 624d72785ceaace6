#include "tools/gdn_bench/child_process.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's kill
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace gdn::bench {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);
constexpr absl::Duration kTermGrace = absl::Seconds(5);
constexpr size_t kLogTailBytes = 2000;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& argv, const std::string& log_file) {
  if (access(argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("cannot execute '", argv[0], "': ", std::strerror(errno)));
  }
  const int log = open(log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (log < 0) return absl::UnavailableError(absl::StrCat("cannot write '", log_file, "': ", std::strerror(errno)));
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {  // only async-signal-safe calls from here to exec
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(args[0], args.data());
    _exit(127);
  }
  const int fork_error = errno;
  close(log);
  if (pid < 0) return absl::UnavailableError(absl::StrCat("cannot fork: ", std::strerror(fork_error)));
  return ChildProcess(pid, argv[0], log_file);
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0 || Exited(absl::ZeroDuration())) return;
  kill(pid_, SIGTERM);
  if (Exited(kTermGrace)) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool ChildProcess::Exited(absl::Duration wait) {
  const absl::Time deadline = absl::Now() + wait;
  while (pid_ > 0) {
    const pid_t reaped = waitpid(pid_, nullptr, WNOHANG);
    if (reaped == pid_ || (reaped < 0 && errno == ECHILD)) {
      pid_ = -1;
      break;
    }
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(kPoll);
  }
  return true;
}

std::string ChildProcess::LogTail() const {
  const std::string log = ReadAll(log_file_);
  return log.size() > kLogTailBytes ? log.substr(log.size() - kLogTailBytes) : log;
}

absl::StatusOr<int> ChildProcess::WaitForPort(const std::string& port_file, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    const std::string text = ReadAll(port_file);
    int port = 0;
    if (absl::EndsWith(text, "\n") && absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &port) && port > 0)
      return port;
    if (Exited(absl::ZeroDuration())) {
      return absl::UnavailableError(absl::StrCat(name_, " exited before it listened. Its last output:\n", LogTail()));
    }
    absl::SleepFor(kPoll);
  }
  return absl::UnavailableError(
      absl::StrCat(name_, " did not listen within ", absl::FormatDuration(timeout), ". Its last output:\n", LogTail()));
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::Make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return absl::UnavailableError(absl::StrCat("no temporary folder: ", error.message()));
  return MakeIn(parent.string());
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::MakeIn(const std::string& parent) {
  std::error_code ignored;
  std::filesystem::create_directories(parent, ignored);
  std::string path = (std::filesystem::path(parent) / "gdn_bench.XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a folder in '", parent, "': ", std::strerror(errno)));
  }
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace gdn::bench
