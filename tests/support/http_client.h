// Plain HTTP over a socket, for requests that are correct and for requests that are not.
//
// Thread safety: one thread for each connection. Ownership: the destructor closes the connection.
//
//   const HttpReply reply = HttpGet(port, "/metrics");
//   EXPECT_EQ(reply.status, 200);
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace gdn {

struct HttpReply {
  int status = 0;  // 0: there was no reply
  std::map<std::string, std::string> headers;
  std::string body;
};

// A connection to a port of 127.0.0.1.
class HttpConnection {
 public:
  explicit HttpConnection(int port);
  HttpConnection(HttpConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  HttpConnection& operator=(HttpConnection&&) = delete;
  ~HttpConnection();

  // Sends bytes. False if the other side accepts no more.
  bool Send(std::string_view bytes) const;
  // Tells the other side that no more bytes follow. Replies can still be read.
  void EndSending() const;
  // Reads until the other side closes the connection.
  std::string ReadAll() const;
  // Waits up to a minute for the other side to close the connection. Drops what it sends.
  bool IsClosedByTheOtherSide() const;

 private:
  int fd_;
};

HttpReply ParseHttpReply(const std::string& text);
HttpReply HttpExchange(int port, std::string_view request);
// Sends a request with Host 127.0.0.1 and `headers`, each of which ends with "\r\n".
HttpReply HttpGet(int port, const std::string& path, const std::string& headers = "",
                  const std::string& method = "GET");

}  // namespace gdn
