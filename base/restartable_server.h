// A gdn_server that long runs start, look at, kill and start again.
//
// Thread safety: none. Ownership: owns the process; it is killed when its owner goes.
//
//   ServerProcess server(absl::GetFlag(FLAGS_server), {"--threads=1"}, folder, "crashing");
//   GDN_RETURN_IF_ERROR(server.Start());
//   const std::unique_ptr<Client> client = Client::Connect(server.target());
//   server.Kill();
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/child_process.h"

namespace gdn {

class ServerProcess {
 public:
  // `name` tells its port file and its log in `folder` from another's.
  ServerProcess(std::string program, std::vector<std::string> flags, const std::string& folder,
                const std::string& name);
  ~ServerProcess() { Kill(); }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Returns when it listens: on a free port of 127.0.0.1 the first time, on the same one later. UNAVAILABLE with the
  // end of its log where it exits, or does not listen within a minute.
  absl::Status Start();
  void Kill();

  std::string target() const;  // once it has been started
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
