// A gRPC server that returns requests' bytes unparsed, on the completion-queue API, for comparison with the raw echo of
// echo_server.h. Both have the same methods, transport and heap settings. A difference in time is the cost of the
// callback API, on which gdn_server is built.
//
// Each thread polls a completion queue of its own and answers on the same thread.
// Thread safety: RunQueueEchoServer needs a process of its own, because gRPC lets any polling thread of a process read
// any connection. SIGTERM or SIGINT ends the process; the function returns only errors.
//
//   return RunQueueEchoServer("127.0.0.1:0", "/tmp/port", /*threads=*/1);
#pragma once

#include <string>

#include "absl/status/status.h"

namespace gdn::bench {

// Listens on `address`, a gRPC name (port 0: a free port), writes the port and a newline to `port_file`, and serves
// Decode, Prefill and their streams until SIGTERM or SIGINT ends the process. `threads`: number of polling threads, at
// least 1. Returns only an error, if the file cannot be written or it cannot listen.
absl::Status RunQueueEchoServer(const std::string& address, const std::string& port_file, int threads);

}  // namespace gdn::bench
