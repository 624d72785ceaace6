// The measures for the service: a gRPC server of the same API whose Decode answers at once with its own input's tensor,
// and whose streams of state files carry bytes that come from nowhere and go nowhere.
//
// It uses the same callback API, messages and transport as gdn_server, parses the same request and returns as many
// bytes; it looks up no session, validates nothing and computes nothing. What gdn_server takes longer is the price of
// being a service. Thread safety: RunEchoServer is for a process of its own; it returns when the process is asked to
// end.
//
//   return RunEchoServer("/tmp/port");  // inside `gdn_bench echo_server`
#pragma once

#include <string>

#include "absl/status/status.h"

namespace gdn::bench {

// Listens on a free port of 127.0.0.1, writes it with a newline to `port_file`, and serves until SIGTERM or SIGINT.
absl::Status RunEchoServer(const std::string& port_file);

}  // namespace gdn::bench
