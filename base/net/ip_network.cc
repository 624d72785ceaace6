#include "base/net/ip_network.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kNetworkBytes = 8;

std::string TextOf(in_addr address) {
  std::array<char, INET_ADDRSTRLEN> text = {};
  return inet_ntop(AF_INET, &address, text.data(), text.size());
}

std::string TextOf(in6_addr address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (IN6_IS_ADDR_V4MAPPED(&address)) return inet_ntop(AF_INET, &address.s6_addr[12], text.data(), text.size());
  std::fill(std::begin(address.s6_addr) + kNetworkBytes, std::end(address.s6_addr), uint8_t{0});
  return StrCat(inet_ntop(AF_INET6, &address, text.data(), text.size()), "/64");
}

}  // namespace

std::optional<std::string> NetworkOf(const std::string& address) {
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return TextOf(v4);
  if (inet_pton(AF_INET6, address.c_str(), &v6) == 1) return TextOf(v6);
  return std::nullopt;
}

std::string NetworkOf(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET6) return TextOf(reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr);
  if (peer.ss_family != AF_INET) return "";
  return TextOf(reinterpret_cast<const sockaddr_in&>(peer).sin_addr);
}

}  // namespace gdn
