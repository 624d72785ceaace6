#include "tests/support/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace gdn {
namespace {

constexpr int kPollMilliseconds = 20;  // how soon a thread hears that it is to stop, or to go on

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

// False where the receiver is gone.
bool SendAll(int socket, const char* bytes, ssize_t count) {
  while (count > 0) {
    const ssize_t sent = send(socket, bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent;
    count -= sent;
  }
  return true;
}

void SendAtOnce(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

TcpProxy::TcpProxy(int target_port) : target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener_, SOMAXCONN) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    Die("tcp_proxy: listen on the loopback address");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

TcpProxy::~TcpProxy() {
  stop_ = true;
  acceptor_.join();
  CloseConnections();
  close(listener_);
}

void TcpProxy::DropReplies() {
  absl::MutexLock lock(&mu_);
  for (Connection& connection : connections_) connection.dropping = true;
}

void TcpProxy::CloseConnections() {
  std::list<Connection> ended;
  {
    absl::MutexLock lock(&mu_);
    ended.swap(connections_);  // nodes stay where they are, so their threads may go on using them
  }
  for (Connection& connection : ended) {
    connection.ending = true;
    // Shutdown wakes the reads. The descriptors stay open until their thread has ended.
    shutdown(connection.client, SHUT_RDWR);
    shutdown(connection.server, SHUT_RDWR);
    connection.thread.join();
    close(connection.client);
    close(connection.server);
  }
}

void TcpProxy::Accept() {
  while (!stop_) {
    pollfd waiting{.fd = listener_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPollMilliseconds) <= 0) continue;
    if (cut_) {  // whoever connects waits in the kernel's queue
      poll(nullptr, 0, kPollMilliseconds);
      continue;
    }
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    ++accepted_;
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(target_port_);
    if (server < 0 || connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      if (server >= 0) close(server);
      close(client);
      continue;
    }
    SendAtOnce(client);
    SendAtOnce(server);
    absl::MutexLock lock(&mu_);
    Connection& connection = connections_.emplace_back();
    connection.client = client;
    connection.server = server;
    connection.thread = std::thread([this, &connection] { Forward(connection); });
  }
}

void TcpProxy::Forward(Connection& connection) {
  const int client = connection.client;
  const int server = connection.server;
  std::array<char, 64 << 10> buffer;
  std::array<pollfd, 2> ends = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
  for (bool open = true; open;) {
    if (poll(ends.data(), ends.size(), -1) < 0) break;
    if (cut_ && !connection.ending) {
      poll(nullptr, 0, kPollMilliseconds);
      continue;
    }
    for (const pollfd& end : ends) {
      if (end.revents == 0) continue;
      const ssize_t count = recv(end.fd, buffer.data(), buffer.size(), 0);
      if (count <= 0) {
        open = false;
      } else if (end.fd == server && connection.dropping) {
        dropped_bytes_ += count;
      } else {
        open = SendAll(end.fd == client ? server : client, buffer.data(), count);
      }
      if (!open) break;
    }
  }
  // The other side hears of it now; the descriptors are closed by whoever joins this thread.
  shutdown(client, SHUT_RDWR);
  shutdown(server, SHUT_RDWR);
}

}  // namespace gdn
