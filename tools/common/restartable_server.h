// A gdn_server that a program starts, kills and restarts, to show or test what survives.
//
// Thread safety: for one thread. Ownership: owns the process; the destructor kills it.
//
//   RestartableServer server(absl::GetFlag(FLAGS_server), {"--threads=1"}, folder, "crashing");
//   GDN_RETURN_IF_ERROR(server.Start());
//   const std::unique_ptr<Client> client = Client::Connect(server.target());
//   server.Kill();
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/common/child_process.h"

namespace gdn {

class RestartableServer {
 public:
  // Starts nothing yet. Start runs `program` with --listen, --port-file and then `flags`. The port file and the log are
  // FOLDER/NAME.port and FOLDER/NAME.log.
  RestartableServer(std::string program, std::vector<std::string> flags, const std::string& folder,
                    const std::string& name);
  ~RestartableServer() { Kill(); }
  RestartableServer(const RestartableServer&) = delete;
  RestartableServer& operator=(const RestartableServer&) = delete;

  // Starts the program with the flags, and returns when it listens: on a free port of 127.0.0.1 the first time, on the
  // same port later. NOT_FOUND if the program is missing; UNAVAILABLE, with the end of the log, if it exits or does not
  // listen within a minute.
  absl::Status Start();
  // Kills the server (SIGKILL) and waits until it is gone. Does nothing if none runs.
  void Kill();

  std::string target() const;  // "127.0.0.1:PORT"; valid after Start
  pid_t pid() const { return process_.has_value() ? process_->pid() : 0; }

 private:
  const std::string program_;
  const std::vector<std::string> flags_;
  const std::string port_file_;
  const std::string log_file_;
  std::optional<ChildProcess> process_;
  int port_ = 0;
};

}  // namespace gdn
