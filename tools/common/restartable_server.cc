#include "tools/common/restartable_server.h"

#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {

RestartableServer::RestartableServer(std::string program, std::vector<std::string> flags, const std::string& folder,
                                     const std::string& name)
    : program_(std::move(program)),
      flags_(std::move(flags)),
      port_file_(StrCat(folder, "/", name, ".port")),
      log_file_(StrCat(folder, "/", name, ".log")) {}

absl::Status RestartableServer::Start() {
  process_.reset();
  std::remove(port_file_.c_str());
  std::vector<std::string> argv = {program_, StrCat("--listen=", target()), StrCat("--port-file=", port_file_)};
  argv.insert(argv.end(), flags_.begin(), flags_.end());
  GDN_ASSIGN_OR_RETURN(ChildProcess started, ChildProcess::Start(std::move(argv), log_file_));
  process_.emplace(std::move(started));
  GDN_ASSIGN_OR_RETURN(port_, process_->WaitForPort(port_file_, absl::Minutes(1)));
  return absl::OkStatus();
}

void RestartableServer::Kill() {
  if (process_.has_value()) process_->End(SIGKILL);
}

std::string RestartableServer::target() const { return StrCat("127.0.0.1:", port_); }

}  // namespace gdn
