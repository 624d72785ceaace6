#include "server/observability/http_server.h"

#include <arpa/inet.h>
#include <civetweb.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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

class CivetwebServer final : public HttpServer {
 public:
  explicit CivetwebServer(HttpHandlers handlers) : handlers_(std::move(handlers)) {}
  ~CivetwebServer() override {
    if (context_ != nullptr) mg_stop(context_);
  }

  absl::Status Listen(const Address& address, absl::Duration request_timeout) {
    const std::string listen = address.text();
    const std::string threads = StrCat(kThreads);
    const std::string timeout = StrCat(absl::ToInt64Milliseconds(request_timeout));
    const std::string most = StrCat(kMostRequestBytes);
    // Without a document root there are no files; without methods to allow, no answer to preflights.
    std::vector<const char*> options;
    for (const auto& [name, value] : {std::pair("listening_ports", listen.c_str()),
                                      {"num_threads", threads.c_str()},
                                      {"request_timeout_ms", timeout.c_str()},
                                      {"max_request_size", most.c_str()},
                                      {"listen_backlog", "32"},
                                      {"enable_keep_alive", "no"},
                                      {"decode_url", "no"},
                                      {"access_control_allow_methods", ""},
                                      {"access_control_allow_origin", ""}}) {
      options.insert(options.end(), {name, value});
    }
    options.push_back(nullptr);
    mg_callbacks callbacks;
    std::memset(&callbacks, 0, sizeof(callbacks));
    callbacks.begin_request = [](mg_connection* connection) {
      return static_cast<CivetwebServer*>(mg_get_request_info(connection)->user_data)->Answer(connection);
    };
    // A malformed request's error would have parts of it in its first line.
    callbacks.http_error = [](mg_connection* connection, int status, const char*) {
      mg_disable_connection_keep_alive(connection);
      const char* const reason = mg_get_response_code_text(connection, status);
      Send(connection, "", {.status = status, .body = StrCat(reason, "\n")});
      return 0;
    };
    // A client can provoke as many lines as it likes.
    callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
    context_ = mg_start(&callbacks, this, options.data());
    mg_server_port port = {};
    if (context_ == nullptr || mg_get_server_ports(context_, 1, &port) != 1) {
      return absl::UnavailableError(StrCat("cannot listen for HTTP on '", listen,
                                           "': is the port taken, or the address not one of this machine's?"));
    }
    port_ = port.port;
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  // Returns the response's status.
  int Answer(mg_connection* connection) const {
    mg_disable_connection_keep_alive(connection);  // a body is not read either, then
    const mg_request_info& info = *mg_get_request_info(connection);
    const std::string_view method = View(info.request_method);
    return Send(connection, method, Handle(info, method, connection));
  }

  static int Send(mg_connection* connection, std::string_view method, const HttpResponse& response) {
    const char* const reason = mg_get_response_code_text(connection, response.status);
    const bool is_405 = response.status == 405;
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n%s"
              "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
              "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
              "form-action 'none'; frame-ancestors 'none'\r\n\r\n",
              response.status, reason, response.content_type.c_str(), response.body.size(),
              is_405 ? "Allow: GET, HEAD\r\n" : "");
    if (method != "HEAD") mg_write(connection, response.body.data(), response.body.size());
    return response.status;
  }

  HttpResponse Handle(const mg_request_info& info, std::string_view method, const mg_connection* connection) const {
    const auto handler = handlers_.find(View(info.local_uri));
    if (handler == handlers_.end()) return {.status = 404, .body = "there is no such page\n"};
    if (method != "GET" && method != "HEAD") return {.status = 405, .body = "only GET and HEAD are answered\n"};
    return handler->second({.authorization = View(mg_get_header(connection, "Authorization")),
                            .host = View(mg_get_header(connection, "Host")),
                            .from_loopback = IsLoopback(info.remote_addr)});
  }

  const HttpHandlers handlers_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, HttpHandlers handlers,
                                                              absl::Duration timeout) {
  GDN_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  auto server = std::make_unique<CivetwebServer>(std::move(handlers));
  GDN_RETURN_IF_ERROR(server->Listen(parsed, timeout));
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
