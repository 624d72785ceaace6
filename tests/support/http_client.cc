#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace gdn {

HttpConnection::HttpConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return;
  close(std::exchange(fd_, -1));
}

HttpConnection::~HttpConnection() {
  if (fd_ >= 0) close(fd_);
}

bool HttpConnection::Send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return fd_ >= 0;
}

std::string HttpConnection::ReadAll() const {
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = recv(fd_, piece.data(), piece.size(), 0);
    if (got <= 0) return text;
    text.append(piece.data(), static_cast<size_t>(got));
  }
}

void HttpConnection::EndSending() const { shutdown(fd_, SHUT_WR); }

bool HttpConnection::IsClosedByTheOtherSide() const {
  std::array<char, 4096> piece;
  pollfd readable = {.fd = fd_, .events = POLLIN, .revents = 0};
  while (poll(&readable, 1, /*timeout=*/60'000) == 1) {
    if (recv(fd_, piece.data(), piece.size(), 0) <= 0) return true;
  }
  return false;
}

HttpReply ParseHttpReply(const std::string& text) {
  HttpReply reply;
  const size_t end = text.find("\r\n\r\n");
  if (text.rfind("HTTP/1.", 0) != 0 || end == std::string::npos) return reply;
  reply.status = std::atoi(text.c_str() + 9);
  reply.body = text.substr(end + 4);
  for (size_t line = text.find("\r\n") + 2; line < end;) {
    const size_t next = text.find("\r\n", line);
    const size_t colon = text.find(": ", line);
    if (colon < next) reply.headers[text.substr(line, colon - line)] = text.substr(colon + 2, next - colon - 2);
    line = next + 2;
  }
  return reply;
}

HttpReply HttpExchange(int port, std::string_view request) {
  const HttpConnection connection(port);
  connection.Send(request);
  return ParseHttpReply(connection.ReadAll());
}

HttpReply HttpGet(int port, const std::string& path, const std::string& headers, const std::string& method) {
  return HttpExchange(port, method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + "\r\n");
}

}  // namespace gdn
