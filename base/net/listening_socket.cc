#include "base/net/listening_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/net/host_port.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status CannotListen(const std::string& address, std::string_view why) {
  return absl::UnavailableError(StrCat("cannot listen on '", address, "': ", why));
}

std::string_view WhyNoSocket(int error, std::string& text) {
  if (error == EADDRINUSE) return "the port is taken; end the process that has it, or choose another port";
  if (error == EADDRNOTAVAIL) return "the address is none of this machine's";
  if (error == EACCES) return "this user may not listen on this port; ports below 1024 are the administrator's";
  text = std::strerror(error);
  return text;
}

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  void SetPort(int port) {
    auto& place = storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                                : reinterpret_cast<sockaddr_in&>(storage).sin_port;
    place = htons(static_cast<uint16_t>(port));
  }
};

SocketAddress AnyIpv6() {
  SocketAddress any{.length = sizeof(sockaddr_in6)};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(any.storage);
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_any;
  return any;
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& address, const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return CannotListen(address, StrCat("the host '", host, "' is not known: ", gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    SocketAddress& copy = addresses.emplace_back();
    std::memcpy(&copy.storage, next->ai_addr, next->ai_addrlen);
    copy.length = next->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

// errno says why it is not valid.
OwnedFd BoundSocket(const SocketAddress& address, bool dual_stack) {
  OwnedFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  const int on = 1, v6_only = dual_stack ? 0 : 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // of a server that has just ended, no other
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // which its connections take over
  if (address.storage.ss_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof(v6_only));
  }
  if (bind(fd.get(), address.get(), address.length) == 0 && listen(fd.get(), SOMAXCONN) == 0) return fd;
  const int error = errno;
  fd = OwnedFd();
  errno = error;
  return fd;
}

}  // namespace

absl::StatusOr<std::vector<ListeningSocket>> ListenOnTcp(const std::string& address) {
  GDN_RETURN_IF_ERROR(CheckHostPort(address));
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  int port = 0;
  static_cast<void>(absl::SimpleAtoi(address.substr(colon + 1), &port));  // it has been checked
  std::vector<SocketAddress> addresses = {AnyIpv6()};
  const bool any = host == "0.0.0.0" || host == "::";
  if (!any) {
    GDN_ASSIGN_OR_RETURN(addresses, Resolve(address, host));
  }
  std::vector<ListeningSocket> sockets;
  int error = 0;
  for (SocketAddress& next : addresses) {
    next.SetPort(port);
    OwnedFd fd = BoundSocket(next, /*dual_stack=*/any);
    if (!fd.valid() && any && errno == EAFNOSUPPORT) {  // a system without IPv6
      GDN_ASSIGN_OR_RETURN(std::vector<SocketAddress> v4, Resolve(address, "0.0.0.0"));
      v4.front().SetPort(port);
      fd = BoundSocket(v4.front(), /*dual_stack=*/false);
    }
    if (!fd.valid()) {
      error = errno;
      // A name may stand for addresses that this machine has not, as ::1 where IPv6 is turned off.
      if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) continue;
      break;
    }
    port = PortOf(fd.get());
    sockets.push_back({.fd = std::move(fd), .port = port, .origin = 0});
    error = 0;
  }
  std::string text;
  const bool failed = sockets.empty() || (error != 0 && error != EADDRNOTAVAIL && error != EAFNOSUPPORT);
  if (failed) return CannotListen(address, WhyNoSocket(error, text));
  return sockets;
}

absl::StatusOr<ListeningSocket> ListenOnUnix(const std::string& path) {
  SocketAddress address{.length = sizeof(sockaddr_un)};
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  un.sun_family = AF_UNIX;
  if (path.size() >= sizeof(un.sun_path)) return CannotListen(StrCat("unix:", path), "the path is too long");
  path.copy(un.sun_path, sizeof(un.sun_path) - 1);
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || bind(fd.get(), address.get(), address.length) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return CannotListen(StrCat("unix:", path), std::strerror(errno));
  }
  return ListeningSocket{.fd = std::move(fd), .port = 0, .origin = 0};
}

}  // namespace gdn
