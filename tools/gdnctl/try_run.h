// The demonstration of `gdnctl try`: a server of its own, a session, a crash, and the session going on without a loss.
//
// Thread safety: for one thread. Ownership: the server and its folder end with the call.
//
//   GDN_RETURN_IF_ERROR(TryServer({.server = "/usr/bin/gdn_server", .model = folder}, std::cout));
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace gdn {

struct TryOptions {
  std::string server;  // the program
  std::string model;   // a folder with a checkpoint and with recorded inputs and outputs (io.safetensors)
};

// Writes each step and what came of it. Errors of the server and of the files; INTERNAL if outputs are off by more than
// 1e-5, or if the session has other outputs after the crash than a session without one.
absl::Status TryServer(const TryOptions& options, std::ostream& out);

}  // namespace gdn
