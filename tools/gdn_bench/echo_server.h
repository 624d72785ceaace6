// The measures for the service: gRPC servers of the same API that answer at once. The echo of messages parses each
// request of Decode, Prefill and their streams and answers with its tensor; its streams of state files carry bytes
// that come from nowhere and go nowhere. The raw echo, at an address of its own, answers those four methods with the
// bytes that it was sent, unparsed.
//
// Both use the same callback API, transport and heap settings as gdn_server and return as many bytes; they look up no
// session, validate nothing and compute nothing. What gdn_server takes longer is the price of being a service. Thread
// safety: RunEchoServer is for a process of its own; it returns when the process is asked to end.
//
//   return RunEchoServer("127.0.0.1:0", "/tmp/port");  // inside `gdn_bench echo_server`
#pragma once

#include <string>

#include "absl/status/status.h"

namespace gdn::bench {

// Listens on `address`, a gRPC name (port 0: free ones), writes the port and a newline to `port_file`, and serves until
// SIGTERM or SIGINT. The raw echo's port file, and where `address` is a Unix socket its socket, are RawEchoOf those.
// `secure`: the folder of credentials.h; "": no TLS.
absl::Status RunEchoServer(const std::string& address, const std::string& port_file, const std::string& secure = "");

std::string RawEchoOf(const std::string& path);

}  // namespace gdn::bench
