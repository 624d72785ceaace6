// A program started by this one: a server for a measurement or a test, or a tool that is waited for.
//
// No shell is involved. The child is ended by its own pid and reaped when its owner is destroyed (SIGTERM, then SIGKILL
// after a few seconds), and by the kernel when the thread that started it ends first, so no child outlives its parent.
// Thread safety: Signal from any thread, the rest from one. Ownership: owns the child; movable. Start children before
// any gRPC channel is made: what a channel's threads hold is lost in the child.
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
  // argv[0] is the program: a path, or a name that is looked for in PATH. Its stdout and stderr are appended to
  // `log_file`; empty: they are this process's own. NOT_FOUND where it cannot be executed.
  static absl::StatusOr<ChildProcess> Start(std::vector<std::string> argv, const std::string& log_file);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(other.pid_.exchange(0)),
        exit_code_(other.exit_code_),
        name_(std::move(other.name_)),
        log_file_(std::move(other.log_file_)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // Returns once ready() is true, which is asked every few milliseconds. UNAVAILABLE with the end of the child's log
  // where it exits first or takes longer than `timeout`.
  absl::Status WaitUntil(const std::function<bool()>& ready, absl::Duration timeout);
  // The port that the child writes to `port_file` once it listens, 0 where it does on Unix sockets alone; errors as
  // WaitUntil's.
  absl::StatusOr<int> WaitForPort(const std::string& port_file, absl::Duration timeout);

  pid_t pid() const { return pid_; }  // 0 once it has been reaped
  // Sends a signal and does not wait; nothing where the child has been reaped.
  void Signal(int signal) const;
  // Sends a signal and waits until the child is gone.
  void End(int signal);
  // Waits until it ends by itself. Its exit code, or 128 and the number of the signal that ended it.
  int Wait();

 private:
  ChildProcess(pid_t pid, std::string name, std::string log_file)
      : pid_(pid), name_(std::move(name)), log_file_(std::move(log_file)) {}
  // Whether it has ended, in which case it is reaped.
  bool Exited();
  bool Reap(int options);
  std::string LogTail() const;

  std::atomic<pid_t> pid_;  // 0 once reaped
  int exit_code_ = -1;      // once reaped
  std::string name_;
  std::string log_file_;
};

// The child's part in WaitForPort: the number appears whole or not at all. INVALID_ARGUMENT if it cannot be written.
absl::Status WritePortFile(const std::string& port_file, int port);

}  // namespace gdn
