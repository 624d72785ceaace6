#include "tests/soak/server_process.h"

#include <fcntl.h>
#include <signal.h>
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
#include "absl/time/clock.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr absl::Duration kStartTimeout = absl::Minutes(1);
constexpr absl::Duration kPoll = absl::Milliseconds(2);
constexpr size_t kLogTailBytes = 3000;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

ServerProcess::ServerProcess(std::string program, std::vector<std::string> flags, std::string folder, std::string name)
    : program_(std::move(program)),
      flags_(std::move(flags)),
      port_file_(StrCat(folder, "/", name, ".port")),
      log_file_(StrCat(folder, "/", name, ".log")) {}

std::string ServerProcess::target() const { return StrCat("127.0.0.1:", port_); }

std::string ServerProcess::LogTail() const {
  const std::string log = ReadAll(log_file_);
  return log.substr(log.size() > kLogTailBytes ? log.size() - kLogTailBytes : 0);
}

absl::Status ServerProcess::Start() {
  std::remove(port_file_.c_str());
  std::vector<std::string> words = {program_, StrCat("--listen=", target()), StrCat("--port-file=", port_file_)};
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int log = open(log_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return absl::ErrnoToStatus(errno, AbslView(StrCat("cannot write '", log_file_, "'")));
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {  // only async-signal-safe calls from here to exec
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(log);
  if (pid_ < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (absl::Now() < deadline) {
    const std::string text = ReadAll(port_file_);
    if (absl::EndsWith(text, "\n") && absl::SimpleAtoi(text, &port_) && port_ > 0) return absl::OkStatus();
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return absl::UnavailableError(AbslView(StrCat("the server exited before it listened:\n", LogTail())));
    }
    absl::SleepFor(kPoll);
  }
  return absl::UnavailableError(AbslView(StrCat("the server does not listen:\n", LogTail())));
}

void ServerProcess::End(int signal) {
  if (pid_ <= 0) return;
  kill(pid_, signal);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void ServerProcess::Kill() { End(SIGKILL); }
void ServerProcess::Stop() { End(SIGTERM); }

}  // namespace gdn
