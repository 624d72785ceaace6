// A small HTTP port for operators: GET and HEAD of a fixed set of paths, answered from memory.
//
// No request reaches the file system. Queries are ignored, and bodies are never read. The size of requests, the number
// of connections and threads, and idle time are bounded, and a connection serves one request. A client that never ends
// its request takes up no thread. If all connections are in use, the oldest is closed for a new one, so health probes
// are always answered.
// Thread safety: Start and destruction on one thread; handlers are called from any, several at a time. Ownership: owns
// its threads; what handlers use must outlive it.
//
//   const HttpHandler ok = [](const HttpRequest&) { return HttpResponse{.body = "ok\n"}; };
//   GDN_ASSIGN_OR_RETURN(auto http, HttpServer::Start("127.0.0.1:0", {{"/healthz", ok}}));
//   std::cout << http->port();
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdn {

struct HttpRequest {
  std::string_view authorization = {};  // value of the header Authorization; "" without one
  std::string_view host = {};
  bool from_loopback = false;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string location = {};  // the target of a redirect; "": none
};

using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;
using HttpHandlers = std::map<std::string, HttpHandler, std::less<>>;  // by path without query, as it was sent

class HttpServer {
 public:
  // Most bytes of a request's line and headers; a larger request is answered with the status 431.
  static constexpr int kMostRequestBytes = 8192;
  static constexpr int kThreads = 4;
  static constexpr size_t kMostConnections = 512;

  // Listens on `address` and answers requests until the result is destroyed. `address`: ADDRESS:PORT with an IPv4
  // address, an IPv6 address in brackets, or localhost (127.0.0.1); port 0 takes a free port. INVALID_ARGUMENT if it is
  // none of these, UNAVAILABLE if the server cannot listen on it. A connection that is idle for `timeout`, rounded up
  // to whole seconds, is closed.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, HttpHandlers handlers,
                                                           absl::Duration timeout = absl::Seconds(5));
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
};

// Returns OK if Start takes the address, else the INVALID_ARGUMENT that it would return. Opens nothing.
absl::Status CheckHttpAddress(const std::string& address);
// Returns true if an address or host name, with or without a port, is this machine itself: localhost, 127.x.x.x or ::1.
// Looks no name up.
bool IsLoopback(std::string_view host);

}  // namespace gdn
