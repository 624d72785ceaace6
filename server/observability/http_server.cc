#include "server/observability/http_server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "base/net/listening_socket.h"
#include "base/net/socket_listener.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

struct Address {
  std::string host;  // without brackets
  bool v6 = false;
  int port = 0;

  std::string text() const { return v6 ? StrCat("[", host, "]:", port) : StrCat(host, ":", port); }
};

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  const absl::Status error = absl::InvalidArgumentError(
      StrCat("'", text, "' is no address to listen on, expected ADDRESS:PORT such as 127.0.0.1:9464 or [::1]:9464"));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return error;
  Address address{.host = text.substr(0, colon)};
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.v6 = true;
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  std::array<unsigned char, sizeof(in6_addr)> bytes;
  if (inet_pton(address.v6 ? AF_INET6 : AF_INET, address.host.c_str(), bytes.data()) != 1) return error;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &address.port) || address.port < 0 || address.port > 65535)
    return error;
  return address;
}

std::string_view View(const char* text) { return text == nullptr ? std::string_view() : std::string_view(text); }

std::string AddressText(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (address == nullptr) return "";
  const void* const bytes = address->sa_family == AF_INET6
                                ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr)
                                : static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  return std::string(View(inet_ntop(address->sa_family, bytes, text.data(), text.size())));
}

// The open connections, oldest first. There is always space for one more, because the oldest is closed. So a client
// that never ends its request takes up a place until another client needs it, and never a thread.
class OpenConnections {
 public:
  using Place = std::list<int>::iterator;

  // Call it before a connection is handed to the library, which calls Add for it later from another thread.
  void Expect() {
    absl::MutexLock lock(&mu_);
    ++expected_;
  }
  // Call it if the library has refused an expected connection.
  void ExpectNoMore() {
    absl::MutexLock lock(&mu_);
    --expected_;
  }
  Place Add(int fd) {
    absl::MutexLock lock(&mu_);
    --expected_;
    if (closing_) shutdown(fd, SHUT_RDWR);
    if (fds_.size() >= HttpServer::kMostConnections) {
      shutdown(fds_.front(), SHUT_RDWR);
      fds_.splice(fds_.end(), fds_, fds_.begin());  // the next Add closes another one
    }
    return fds_.insert(fds_.end(), fd);
  }
  // Call it before the descriptor is closed.
  void Remove(Place place) {
    absl::MutexLock lock(&mu_);
    fds_.erase(place);
  }
  // Closes all connections, and waits until the library has done with them, for `limit` at most: it does not tell of
  // expected connections that it drops.
  void CloseAll(absl::Duration limit) {
    absl::MutexLock lock(&mu_);
    closing_ = true;
    for (const int fd : fds_) shutdown(fd, SHUT_RDWR);
    mu_.AwaitWithTimeout(absl::Condition(this, &OpenConnections::NoneLocked), limit);
  }

 private:
  bool NoneLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return fds_.empty() && expected_ <= 0; }

  absl::Mutex mu_;
  std::list<int> fds_ ABSL_GUARDED_BY(mu_);
  int64_t expected_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
};

class MicrohttpdServer final : public HttpServer {
 public:
  explicit MicrohttpdServer(HttpHandlers handlers) : handlers_(std::move(handlers)) {}
  ~MicrohttpdServer() override {
    listener_ = nullptr;  // it hands connections to the daemon
    if (daemon_ == nullptr) return;
    // libmicrohttpd 0.9.75 reads a null response if it refuses a request while it is being stopped.
    open_.CloseAll(absl::Seconds(2));
    MHD_stop_daemon(daemon_);
  }

  absl::Status Listen(const std::string& address, absl::Duration timeout) {
    GDN_ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, ListenOnTcp(address));
    port_ = sockets.front().port;
    const int64_t seconds = std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(timeout, absl::Seconds(1))));
    // Not epoll: with it, version 0.9.75 overlooks an end that comes together with the last bytes of half a request.
    daemon_ = MHD_start_daemon(
        MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC, /*port=*/0, nullptr, nullptr,
        &OnRequest, this, MHD_OPTION_THREAD_POOL_SIZE, static_cast<unsigned>(kThreads), MHD_OPTION_CONNECTION_LIMIT,
        static_cast<unsigned>(2 * kMostConnections), MHD_OPTION_CONNECTION_TIMEOUT, static_cast<unsigned>(seconds),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, size_t{4} * kMostRequestBytes, MHD_OPTION_NOTIFY_CONNECTION, &OnConnection,
        this, MHD_OPTION_UNESCAPE_CALLBACK, &Unescape, nullptr, MHD_OPTION_EXTERNAL_LOGGER, &Ignore, nullptr,
        MHD_OPTION_END);
    if (daemon_ == nullptr) return absl::UnavailableError(StrCat("the HTTP server on '", address, "' does not start"));
    const auto take = [this](OwnedFd fd, size_t) {
      sockaddr_storage peer = {};
      socklen_t length = sizeof(peer);
      if (getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &length) != 0) return;  // the client has gone
      open_.Expect();
      if (MHD_add_connection(daemon_, std::move(fd).Release(), reinterpret_cast<sockaddr*>(&peer), length) != MHD_YES)
        open_.ExpectNoMore();
    };
    GDN_ASSIGN_OR_RETURN(listener_, SocketListener::Start(std::move(sockets), {}, take));
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  static void Ignore(void*, const char*, va_list) {}  // a client can provoke any number of log lines
  // Paths are compared as they were sent.
  static size_t Unescape(void*, MHD_Connection*, char* text) { return std::strlen(text); }

  static void OnConnection(void* self, MHD_Connection* connection, void** context,
                           MHD_ConnectionNotificationCode code) {
    OpenConnections& open = static_cast<MicrohttpdServer*>(self)->open_;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
      *context = new OpenConnections::Place(open.Add(info->connect_fd));
    } else {
      const std::unique_ptr<OpenConnections::Place> place(static_cast<OpenConnections::Place*>(*context));
      open.Remove(*place);
    }
  }

  // Called when the headers have come. It answers at once and does not wait for a body.
  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* path, const char* method,
                              const char* /*version*/, const char* /*body*/, size_t* /*body_bytes*/,
                              void** /*context*/) {
    const HttpResponse response = static_cast<MicrohttpdServer*>(self)->Handle(connection, View(path), View(method));
    MHD_Response* const made = MHD_create_response_from_buffer(
        response.body.size(), const_cast<char*>(response.body.data()), MHD_RESPMEM_MUST_COPY);
    if (made == nullptr) return MHD_NO;
    for (const auto& [name, value] :
         {std::pair("Content-Type", response.content_type.c_str()),
          {"Connection", "close"},
          {"Cache-Control", "no-store"},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Content-Security-Policy",
           "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
           "form-action 'none'; frame-ancestors 'none'"}}) {
      MHD_add_response_header(made, name, value);
    }
    if (!response.location.empty()) MHD_add_response_header(made, "Location", response.location.c_str());
    if (response.status == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(made, "Allow", "GET, HEAD");
    const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(response.status), made);
    MHD_destroy_response(made);
    return queued;
  }

  HttpResponse Handle(MHD_Connection* connection, std::string_view path, std::string_view method) const {
    const MHD_ConnectionInfo* const size = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (size != nullptr && size->header_size > kMostRequestBytes) {
      return {.status = MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE, .body = "the request's headers are too large\n"};
    }
    const auto handler = handlers_.find(path);
    if (handler == handlers_.end()) return {.status = MHD_HTTP_NOT_FOUND, .body = "there is no such page\n"};
    if (method != "GET" && method != "HEAD") {
      return {.status = MHD_HTTP_METHOD_NOT_ALLOWED, .body = "only GET and HEAD are answered\n"};
    }
    const auto header = [connection](const char* name) {
      return View(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name));
    };
    const MHD_ConnectionInfo* const peer = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return handler->second({.authorization = header("Authorization"),
                            .host = header("Host"),
                            .from_loopback = IsLoopback(AddressText(peer == nullptr ? nullptr : peer->client_addr))});
  }

  const HttpHandlers handlers_;
  OpenConnections open_;
  MHD_Daemon* daemon_ = nullptr;
  int port_ = 0;
  std::unique_ptr<SocketListener> listener_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, HttpHandlers handlers,
                                                              absl::Duration timeout) {
  GDN_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  auto server = std::make_unique<MicrohttpdServer>(std::move(handlers));
  GDN_RETURN_IF_ERROR(server->Listen(parsed.text(), timeout));
  return server;
}

absl::Status CheckHttpAddress(const std::string& address) { return ParseAddress(address).status(); }

bool IsLoopback(std::string_view host) {
  if (const size_t close = host.find(']'); !host.empty() && host.front() == '[' && close != std::string_view::npos) {
    host = host.substr(1, close - 1);
  } else if (const size_t colon = host.find(':'); colon != std::string_view::npos && colon == host.rfind(':')) {
    host = host.substr(0, colon);
  }
  if (host == "localhost" || host == "::1") return true;
  if (AbslView(host).substr(0, 7) == "::ffff:") host = host.substr(7);
  std::array<unsigned char, sizeof(in_addr)> bytes;
  return inet_pton(AF_INET, std::string(host).c_str(), bytes.data()) == 1 && bytes[0] == 127;
}

}  // namespace gdn
