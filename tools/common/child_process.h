// A child process: a server that is measured or tested, or a tool whose end is awaited.
//
// No shell is involved. The destructor ends and reaps the child (SIGTERM, after 5 s SIGKILL). The kernel kills the
// child when the thread that started it ends, so no child outlives its parent.
// Thread safety: Signal from any thread, the rest from one. Ownership: owns the child; movable. Start children before
// you make any gRPC channel: a fork does not copy the channel's threads.
//
//   GDN_ASSIGN_OR_RETURN(ChildProcess server, ChildProcess::Start({path, "--port_file=" + port_file}, log_file));
//   GDN_ASSIGN_OR_RETURN(int port, server.WaitForPort(port_file, absl::Seconds(30)));
//   server.End(SIGKILL);
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdn {

class ChildProcess {
 public:
  // Starts argv[0] (a path, or a name to look up in PATH) with argv as its arguments. Stdout and stderr are appended to
  // `log_file`, or inherited from this process if `log_file` is empty. NOT_FOUND if the program cannot be executed;
  // UNAVAILABLE if the log cannot be written or the system makes no process.
  static absl::StatusOr<ChildProcess> Start(std::vector<std::string> argv, const std::string& log_file);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(other.pid_.exchange(0)),
        exit_code_(other.exit_code_),
        name_(std::move(other.name_)),
        log_file_(std::move(other.log_file_)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // Polls ready() every few milliseconds and returns when it is true. UNAVAILABLE, with the end of the child's log, if
  // the child exits first or `timeout` passes.
  absl::Status WaitUntil(const std::function<bool()>& ready, absl::Duration timeout);
  // Waits for and returns the port that the child writes to `port_file` once it listens; 0 if it listens on Unix
  // sockets only. Errors as of WaitUntil.
  absl::StatusOr<int> WaitForPort(const std::string& port_file, absl::Duration timeout);

  pid_t pid() const { return pid_; }  // 0 once it has been reaped
  // Sends a signal and does not wait. Does nothing if the child has been reaped.
  void Signal(int signal) const;
  // Sends a signal and waits until the child is gone.
  void End(int signal);
  // Waits until the child ends by itself. Returns its exit code, or 128 plus the number of the signal that ended it. A
  // later call returns the same.
  int Wait();

 private:
  ChildProcess(pid_t pid, std::string name, std::string log_file)
      : pid_(pid), name_(std::move(name)), log_file_(std::move(log_file)) {}
  // Returns true if the child has ended, also in later calls, and reaps it the first time. Does not wait.
  bool Exited();
  bool Reap(int options);
  std::string LogTail() const;

  std::atomic<pid_t> pid_;  // 0 once reaped
  int exit_code_ = -1;      // valid once reaped
  std::string name_;
  std::string log_file_;
};

// Called by the child for WaitForPort: writes the number and a newline, whole or not at all. INVALID_ARGUMENT if that
// fails.
absl::Status WritePortFile(const std::string& port_file, int port);

}  // namespace gdn
