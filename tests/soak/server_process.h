// A gdn_server that a test starts, kills and starts again on the same port.
//
// Thread safety: one thread at a time. Ownership: the server is killed when its owner goes, and with this process.
//
//   ServerProcess server("build/cpu/bin/gdn_server", {"--disk-dir=/tmp/d"}, folder, "crashing");
//   GDN_RETURN_IF_ERROR(server.Start());
//   server.Kill();
//   GDN_RETURN_IF_ERROR(server.Start());
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/child_process.h"

namespace gdn {

class ServerProcess {
 public:
  // `folder` is for its port file and its log; `name` tells them apart.
  ServerProcess(std::string program, std::vector<std::string> flags, const std::string& folder,
                const std::string& name);
  ~ServerProcess() { Kill(); }

  // Returns when it listens: on a free port the first time, on the same one later. UNAVAILABLE with the end of its log
  // where it exits, or does not listen within a minute.
  absl::Status Start();
  // SIGKILL, and waits until it is gone.
  void Kill();

  std::string target() const;  // once it has been started

 private:
  const std::string program_;
  const std::vector<std::string> flags_;
  const std::string port_file_;
  const std::string log_file_;
  std::optional<ChildProcess> process_;
  int port_ = 0;
};

}  // namespace gdn
