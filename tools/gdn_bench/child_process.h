// A server started for a measurement and ended with it, whatever happens.
//
// The child is ended by its pid when the owner is destroyed (SIGTERM, then SIGKILL after a few seconds), and by the
// kernel when this process dies first. Thread safety: one thread. Ownership: owns the child; movable. Start children
// before any gRPC channel is made.
//
//   GDN_ASSIGN_OR_RETURN(ChildProcess server, ChildProcess::Start({path, "--port_file=" + port_file}, log_file));
//   GDN_ASSIGN_OR_RETURN(int port, server.WaitForPort(port_file, absl::Seconds(30)));
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdn::bench {

class ChildProcess {
 public:
  // argv[0] is the path of the program; its stdout and stderr go to `log_file`. NOT_FOUND where it cannot be executed.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& argv, const std::string& log_file);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), name_(std::move(other.name_)), log_file_(std::move(other.log_file_)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // The port that the child writes to `port_file` once it listens. UNAVAILABLE with the end of its log where it exits
  // first or takes longer than `timeout`.
  absl::StatusOr<int> WaitForPort(const std::string& port_file, absl::Duration timeout);

 private:
  ChildProcess(pid_t pid, std::string name, std::string log_file)
      : pid_(pid), name_(std::move(name)), log_file_(std::move(log_file)) {}
  bool Exited(absl::Duration wait);
  std::string LogTail() const;

  pid_t pid_ = -1;
  std::string name_;
  std::string log_file_;
};

// A folder of its own, Make's under the system's temporary one, removed with its contents on destruction.
class TemporaryFolder {
 public:
  static absl::StatusOr<TemporaryFolder> Make();
  // Under `parent`, which is made where it is not there.
  static absl::StatusOr<TemporaryFolder> MakeIn(const std::string& parent);
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace gdn::bench
