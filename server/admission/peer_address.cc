#include "server/admission/peer_address.h"

#include "base/net/ip_network.h"

namespace gdn {
namespace {

// Returns "a" for "a:port".
std::string_view WithoutPort(std::string_view text) { return text.substr(0, text.rfind(':')); }

// gRPC writes the brackets of an IPv6 address as they are in a URI, or escaped; a zone may follow the address.
std::string_view BareIpv6(std::string_view text) {
  for (const std::string_view open : {"[", "%5B", "%5b"}) {
    if (text.substr(0, open.size()) == open) text.remove_prefix(open.size());
  }
  return text.substr(0, text.find_first_of("]%"));
}

}  // namespace

std::string PeerAddress(std::string_view peer) {
  const size_t colon = peer.find(':');
  const std::string_view scheme = peer.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? "" : peer.substr(colon + 1);
  if (scheme == "unix" || scheme == "unix-abstract") return "unix";
  if (scheme == "ipv4") return std::string(WithoutPort(rest));
  return scheme == "ipv6" ? NetworkOf(std::string(BareIpv6(rest))).value_or(std::string(peer)) : std::string(peer);
}

}  // namespace gdn
