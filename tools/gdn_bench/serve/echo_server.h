// gRPC servers for comparison with gdn_server: they have the same API and answer at once. The echo of messages parses
// each request of Decode, Prefill and their streams and returns its tensor; its streams of state files send and drop
// meaningless bytes. The raw echo, at its own address, returns the bytes of requests of those four methods unparsed.
//
// Both use the same callback API, transport and heap settings as gdn_server and return equally many bytes. They look up
// no session, validate nothing and compute nothing, so a difference in time is the cost of gdn_server's own work.
// Thread safety: RunEchoServer needs a process of its own, which SIGTERM or SIGINT ends; it returns only errors.
//
//   return RunEchoServer("127.0.0.1:0", "/tmp/port");  // inside `gdn_bench echo_server`
#pragma once

#include <string>

#include "absl/status/status.h"

namespace gdn::bench {

// Listens on `address`, a gRPC name (port 0: free ports), writes the port and a newline to `port_file`, and serves
// until SIGTERM or SIGINT ends the process. The raw echo's port file is RawEchoOf(port_file), and its Unix socket, if
// `address` is one, is RawEchoOf that path. `secure`: the folder of credentials.h; "": no TLS. Returns only an error,
// if a file cannot be read or written or it cannot listen.
absl::Status RunEchoServer(const std::string& address, const std::string& port_file, const std::string& secure = "");

std::string RawEchoOf(const std::string& path);

}  // namespace gdn::bench
