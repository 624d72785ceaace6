// The demonstration of `gdnctl try`: a session that continues without a loss after its server has crashed.
//
// Thread safety: for one thread. Ownership: the call ends the server and removes its folder.
//
//   GDN_RETURN_IF_ERROR(TryServer({.server = "/usr/bin/gdn_server", .model = folder}, std::cout));
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace gdn {

struct TryOptions {
  std::string server;  // path of gdn_server
  std::string model;   // a folder with a checkpoint and with recorded inputs and outputs (io.safetensors)
};

// Runs the demonstration, and writes each step and its result to `out`. Errors of the server and of the files. INTERNAL
// if outputs differ from the recorded ones by more than 1e-5, or after the crash from those of a session without a
// crash. INTERNAL too if nothing had to be recovered.
absl::Status TryServer(const TryOptions& options, std::ostream& out);

}  // namespace gdn
