#include "server/observability/http_server.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/http_client.h"

namespace gdn::http_server_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const HttpHandler ok = [](const HttpRequest&) { return HttpResponse{.body = "ok\n"}; };
    const HttpHandler tells = [](const HttpRequest& request) {
      return HttpResponse{.status = 503,
                          .content_type = "text/html",
                          .body = std::string(request.authorization) + "|" + std::string(request.host) + "|" +
                                  (request.from_loopback ? "near" : "far")};
    };
    auto server = HttpServer::Start("127.0.0.1:0", {{"/ok", ok}, {"/tells", tells}}, absl::Milliseconds(500));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int port() const { return server_->port(); }
  // That the server still answers.
  void ExpectAlive() const { EXPECT_EQ(HttpGet(port(), "/ok").body, "ok\n"); }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersGetAndHead) {
  const HttpReply reply = HttpGet(port(), "/ok");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "ok\n");
  EXPECT_EQ(reply.headers.at("Content-Length"), "3");
  EXPECT_EQ(reply.headers.at("Connection"), "close");
  EXPECT_EQ(reply.headers.at("Cache-Control"), "no-store");
  EXPECT_EQ(reply.headers.at("X-Content-Type-Options"), "nosniff");
  EXPECT_THAT(reply.headers.at("Content-Security-Policy"), HasSubstr("default-src 'none'"));
  const HttpReply head = HttpGet(port(), "/ok", "", "HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("Content-Length"), "3");
  EXPECT_EQ(head.body, "");
  EXPECT_EQ(HttpGet(port(), "/ok?query=/etc/passwd").body, "ok\n");
}

TEST_F(HttpServerTest, TellsHandlersWhoAsks) {
  const HttpReply reply = HttpGet(port(), "/tells", "Authorization: Bearer x\r\n");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.body, "Bearer x|127.0.0.1|near");
  EXPECT_EQ(reply.headers.at("Content-Type"), "text/html");
}

TEST_F(HttpServerTest, RefusesOtherMethods) {
  for (const char* const method :
       {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "PROPFIND", "MKCOL"}) {
    SCOPED_TRACE(method);
    const HttpReply reply =
        HttpGet(port(), "/ok", "Origin: http://x\r\nAccess-Control-Request-Method: PUT\r\n", method);
    EXPECT_THAT(reply.status, AnyOf(400, 405, 501));
    if (reply.status == 405) {
      EXPECT_EQ(reply.headers.at("Allow"), "GET, HEAD");
    }
    EXPECT_THAT(reply.body, Not(HasSubstr("ok\n")));
  }
  ExpectAlive();
}

TEST_F(HttpServerTest, ServesNoFile) {
  for (const char* const path : {"/", "/..", "/../../../../../../etc/passwd", "/ok/../../../etc/passwd",
                                 "/%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "//etc/passwd", "/proc/self/environ",
                                 "/CMakeLists.txt", "/ok/", "/OK", "/ok%00", "/.htpasswd", "/index.html"}) {
    SCOPED_TRACE(path);
    const HttpReply reply = HttpGet(port(), path);
    EXPECT_THAT(reply.status, AnyOf(400, 404));
    EXPECT_THAT(reply.body, Not(HasSubstr("root:")));
  }
  EXPECT_EQ(HttpGet(port(), "/ok",
                    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")
                .body,
            "ok\n");
  ExpectAlive();
}

TEST_F(HttpServerTest, BoundsARequest) {
  const std::string large(HttpServer::kMostRequestBytes + 1, 'a');
  for (const std::string& request :
       {"GET /" + large + " HTTP/1.1\r\n\r\n", "GET /ok HTTP/1.1\r\nX: " + large + "\r\n\r\n"}) {
    EXPECT_NE(HttpExchange(port(), request).status, 200);
  }
  std::string many = "GET /ok HTTP/1.1\r\n";
  for (int i = 0; i < 500; ++i) many += "A: b\r\n";
  HttpExchange(port(), many + "\r\n");
  ExpectAlive();
}

TEST_F(HttpServerTest, GarbageDoesItNoHarm) {
  std::mt19937_64 random(1);
  const std::string whole = "GET /ok HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer b\r\nContent-Length: 5\r\n\r\nhello";
  for (int i = 0; i < 300; ++i) {
    std::string request = whole;
    if (i % 3 == 0) {
      for (char& c : request) c = static_cast<char>(random());
    } else if (i % 3 == 1) {
      for (int change = 0; change < 4; ++change) request[random() % request.size()] = static_cast<char>(random());
    } else {
      request.resize(random() % request.size());
    }
    // Not waited for: half a request is answered when its time is over.
    HttpConnection(port()).Send(request);
  }
  for (const char* const length : {"-1", "99999999999999999999", "0x10", "", "1e9"}) {
    const HttpReply reply = HttpGet(port(), "/ok", std::string("Content-Length: ") + length + "\r\n");
    EXPECT_THAT(reply.status, AnyOf(200, 400, 411, 413)) << length;
  }
  ExpectAlive();
}

TEST_F(HttpServerTest, ABodyIsNotWaitedFor) {
  const std::string request = "GET /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n";
  EXPECT_EQ(HttpExchange(port(), request).body, "ok\n");
  const std::string chunked = "GET /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(HttpExchange(port(), chunked).body, "ok\n");
}

TEST(HttpServer, ClientsThatNeverEndTheirRequestsKeepNobody) {
  const HttpHandler ok = [](const HttpRequest&) { return HttpResponse{.body = "ok\n"}; };
  const auto server = HttpServer::Start("127.0.0.1:0", {{"/ok", ok}}, absl::Hours(1));
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<HttpConnection> slow;
  for (size_t i = 0; i < HttpServer::kMostConnections + 64; ++i) {
    slow.emplace_back((*server)->port());
    EXPECT_TRUE(slow.back().Send(i % 2 == 0 ? "GET /ok HTTP/1.1\r\nX: " : ""));
    if (i % 16 == 0) {
      ASSERT_EQ(HttpGet((*server)->port(), "/ok").body, "ok\n") << i;
    }
  }
}

// Under epoll, libmicrohttpd 0.9.75 overlooks an end that comes together with the last bytes.
TEST(HttpServer, ARequestThatStopsHalfwayIsClosedAtOnce) {
  const auto server = HttpServer::Start("127.0.0.1:0", {}, absl::Hours(1));
  ASSERT_TRUE(server.ok()) << server.status();
  for (const char* const half :
       {"", "G", "GET /ok HTTP/1.1", "GET /ok HTTP/1.1\r\nX: ", "GET /ok HTTP/1.1\r\nX: a\r\n"}) {
    const HttpConnection client((*server)->port());
    client.Send(half);
    client.EndSending();
    ASSERT_TRUE(client.IsClosedByTheOtherSide()) << "after '" << half << "'";
  }
}

// libmicrohttpd 0.9.75 reads a null response if it refuses a request while it is being stopped.
TEST(HttpServer, StopsWhileBadRequestsArrive) {
  for (int round = 0; round < 50; ++round) {
    auto server = HttpServer::Start("127.0.0.1:0", {});
    ASSERT_TRUE(server.ok()) << server.status();
    std::vector<HttpConnection> clients;
    for (int i = 0; i < 100; ++i) {
      clients.emplace_back((*server)->port());
      clients.back().Send("\x01 bad\r\nContent-Length: -1\r\n\r\n");
    }
    *server = nullptr;
  }
}

TEST(HttpAddress, TakesAddressesAndNothingElse) {
  for (const char* const good : {"127.0.0.1:0", "localhost:9464", "0.0.0.0:9464", "[::1]:1", "[::]:65535"}) {
    EXPECT_TRUE(CheckHttpAddress(good).ok()) << good;
  }
  for (const char* const bad :
       {"", "9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:80,8081",
        "127.0.0.1:-1", "example.org:80", "::1:80", "[::1]", "[127.0.0.1]:80", "127.0.0.1:80s", "unix:/tmp/x"}) {
    const absl::Status status = CheckHttpAddress(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ADDRESS:PORT"));
  }
}

TEST(HttpAddress, SaysWhereItCannotListen) {
  auto first = HttpServer::Start("127.0.0.1:0", {});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = HttpServer::Start("127.0.0.1:" + std::to_string((*first)->port()), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("the port is taken"));
}

TEST(HttpAddress, KnowsThisMachine) {
  for (const char* const here :
       {"127.0.0.1", "127.8.9.1", "localhost", "localhost:80", "127.0.0.1:80", "::1", "[::1]:80", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(here)) << here;
  }
  for (const char* const elsewhere : {"", "10.0.0.1", "example.org", "127.0.0.1.example.org", "localhost.example.org",
                                      "::2", "[::2]:80", "128.0.0.1", "::ffff:10.0.0.1", "[", "]"}) {
    EXPECT_FALSE(IsLoopback(elsewhere)) << elsewhere;
  }
}

}  // namespace
}  // namespace gdn::http_server_test
