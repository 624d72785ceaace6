// Plain HTTP over a socket, for what a well-behaved client does and for what a hostile one does.
//
// Thread safety: one thread a connection. Ownership: a connection closes itself.
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
  int status = 0;  // 0: none came
  std::map<std::string, std::string> headers;
  std::string body;
};

// To 127.0.0.1.
class HttpConnection {
 public:
  explicit HttpConnection(int port);
  HttpConnection(HttpConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  HttpConnection& operator=(HttpConnection&&) = delete;
  ~HttpConnection();

  // False where the other side takes no more.
  bool Send(std::string_view bytes) const;
  // Until the other side closes.
  std::string ReadAll() const;

 private:
  int fd_;
};

HttpReply ParseHttpReply(const std::string& text);
HttpReply HttpExchange(int port, std::string_view request);
// With a Host of 127.0.0.1, and `headers`, each ended by "\r\n".
HttpReply HttpGet(int port, const std::string& path, const std::string& headers = "",
                  const std::string& method = "GET");

}  // namespace gdn
