#include "server/admission/peer_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/string_cat.h"

namespace gdn {
namespace {

// "a" of "a:port".
std::string_view WithoutPort(std::string_view text) { return text.substr(0, text.rfind(':')); }

// gRPC writes the brackets of an IPv6 address as they are in a URI, or escaped; a zone may follow the address.
std::string_view BareIpv6(std::string_view text) {
  for (const std::string_view open : {"[", "%5B", "%5b"}) {
    if (text.substr(0, open.size()) == open) text.remove_prefix(open.size());
  }
  return text.substr(0, text.find_first_of("]%"));
}

std::string Ipv6Network(const std::array<uint8_t, 16>& bytes) {
  constexpr std::array<uint8_t, 12> kMappedIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (std::equal(kMappedIpv4.begin(), kMappedIpv4.end(), bytes.begin())) {
    return inet_ntop(AF_INET, bytes.data() + kMappedIpv4.size(), text.data(), text.size());
  }
  std::array<uint8_t, 16> network = {};
  std::copy_n(bytes.begin(), 8, network.begin());
  return StrCat(inet_ntop(AF_INET6, network.data(), text.data(), text.size()), "/64");
}

}  // namespace

std::string PeerAddress(std::string_view peer) {
  const size_t colon = peer.find(':');
  const std::string_view scheme = peer.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? "" : peer.substr(colon + 1);
  if (scheme == "unix" || scheme == "unix-abstract") return "unix";
  if (scheme == "ipv4") return std::string(WithoutPort(rest));
  std::array<uint8_t, 16> bytes = {};
  if (scheme == "ipv6" && inet_pton(AF_INET6, std::string(BareIpv6(rest)).c_str(), bytes.data()) == 1) {
    return Ipv6Network(bytes);
  }
  return std::string(peer);
}

}  // namespace gdn
