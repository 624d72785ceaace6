// Requests to the HTTP port, as bytes on a connection.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "server/observability/http_server.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

constexpr std::string_view kSecret = "what only an admin may see";

const HttpServer& TheServer() {
  static const auto* const server = [] {
    const HttpHandler open = [](const HttpRequest&) { return HttpResponse{.body = "ok\n"}; };
    const HttpHandler guarded = [](const HttpRequest& request) {
      IsLoopback(request.host);
      if (request.authorization != "Bearer a") return HttpResponse{.status = 401, .body = "who are you?\n"};
      return HttpResponse{.body = std::string(kSecret)};
    };
    auto started = HttpServer::Start("127.0.0.1:0", {{"/healthz", open}, {"/statusz", guarded}});
    GDN_FUZZ_CHECK(started.ok(), started.status().ToString());
    return started->release();
  }();
  return *server;
}

// libFuzzer's alarm interrupts calls.
template <typename Call>
ssize_t Uninterrupted(Call call) {
  ssize_t result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

void Connect(int connection, const sockaddr_in& address) {
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return;
  // An interrupted connect goes on by itself.
  GDN_FUZZ_CHECK(errno == EINTR, "the server listens no more");
  pollfd done = {.fd = connection, .events = POLLOUT, .revents = 0};
  int error = 0;
  socklen_t size = sizeof(error);
  GDN_FUZZ_CHECK(Uninterrupted([&] { return poll(&done, 1, /*timeout=*/-1); }) == 1 &&
                     getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0,
                 "the server listens no more");
}

// All that the server says to the bytes and the end of the connection.
std::string Ask(std::string_view bytes) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(TheServer().port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Connect(connection, address);
  // One that has answered may have closed already.
  while (!bytes.empty()) {
    const ssize_t sent = Uninterrupted([&] { return send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (sent <= 0) break;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  shutdown(connection, SHUT_WR);
  std::string reply;
  char buffer[4096];
  for (ssize_t got = 0; (got = Uninterrupted([&] { return recv(connection, buffer, sizeof(buffer), 0); })) > 0;) {
    reply.append(buffer, static_cast<size_t>(got));
  }
  close(connection);
  return reply;
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  const std::string_view request(reinterpret_cast<const char*>(data), size);
  const std::string reply = Ask(request);
  if (reply.empty()) return 0;
  GDN_FUZZ_CHECK(reply.substr(0, 7) == "HTTP/1.", reply);
  GDN_FUZZ_CHECK(reply.find(kSecret) == std::string::npos || request.find("Bearer a") != std::string_view::npos,
                 "shown to anybody");
  GDN_FUZZ_CHECK(reply.find("Access-Control-Allow-Origin") == std::string::npos, reply);
  return 0;
}
