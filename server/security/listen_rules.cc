#include "server/security/listen_rules.h"

#include <arpa/inet.h>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/string_cat.h"

namespace gdn {

bool StaysOnThisMachine(std::string_view address) {
  absl::string_view host = AbslView(address);
  if (absl::StartsWith(host, "unix:")) return true;
  const auto colon = host.rfind(':');
  if (colon != absl::string_view::npos) host = host.substr(0, colon);
  if (host == "localhost") return true;
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  const std::string text(host);
  struct in_addr v4 {};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == IN_LOOPBACKNET;
  struct in6_addr v6 {};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckListenWithoutTls(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    if (StaysOnThisMachine(address)) continue;
    return absl::InvalidArgumentError(StrCat(
        "--listen is '", address,
        "', which other machines reach, and there is no TLS: give --tls-cert and --tls-key (docs/how-to/secure.md has "
        "a recipe), listen on 127.0.0.1 or a unix: socket alone, or, where the network itself is safe, give "
        "--allow-insecure"));
  }
  return absl::OkStatus();
}

}  // namespace gdn
