#include "tools/gdnctl/connection_trouble.h"

#include "absl/strings/match.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

struct Trouble {
  std::string_view sign;   // found in the messages of gRPC 1.51 and of OpenSSL 3
  std::string_view words;  // after the target
};

// In this order: a later sign may also be in the message of an earlier one.
constexpr Trouble kTroubles[] = {
    {"wrong version number",
     " does not speak TLS, and this call does. Leave out --tls, --tls-ca, --tls-cert and --tls-key, or start the "
     "server "
     "with --tls-cert and --tls-key."},
    {"certificate verify failed",
     " has a certificate that is not trusted. Name the file of the CA that has issued it, or the certificate itself if "
     "nobody else has: --tls-ca=FILE."},
    {"is not in peer certificate",
     " has a certificate for another name. Call the server by a name that its certificate has (--target=NAME:PORT)."},
    {"Ssl handshake failed", ": the TLS handshake failed. See whether --tls-cert and --tls-key fit the server's CA."},
    {"Socket closed",
     " accepts connections and closes them at once. If the server speaks TLS, add --tls or --tls-ca=FILE; if it asks "
     "for client certificates, also --tls-cert and --tls-key. It may also have too many connections (/readyz says "
     "so)."},
    {"Connection refused",
     ": nothing listens there. Start a server (gdn_server --listen=HOST:PORT), or name another: --target=HOST:PORT."},
    {"No such file or directory",
     ": there is no such socket. Start a server (gdn_server --listen=unix:/PATH), or name another: "
     "--target=unix:/PATH."},
    {"Permission denied", ": this user may not open the socket; it belongs to the user that runs the server."},
    {"DNS resolution failed", ": no address is known for this name. Look for a typing error in --target."},
    {"No route to host", ": no network leads there. Look at --target, routes and firewalls."},
    {"Network is unreachable", ": no network leads there. Look at --target, routes and firewalls."},
    {"Connection timed out", ": no answer. A firewall may drop what is sent there."},
    {"Connection reset by peer", " has closed the connection. The server may have stopped: try again."},
};

// A file or a process of this machine may be unavailable too.
bool IsOfGrpc(std::string_view message) {
  for (const std::string_view sign : {"failed to connect to all addresses", "DNS resolution failed", "Socket closed",
                                      "Connection reset by peer", "empty address list", "Endpoint"}) {
    if (absl::StrContains(AbslView(message), AbslView(sign))) return true;
  }
  return false;
}

}  // namespace

std::string ConnectionTrouble(std::string_view target, std::string_view message) {
  if (!IsOfGrpc(message)) return std::string(message);
  for (const Trouble& trouble : kTroubles) {
    if (absl::StrContains(AbslView(message), AbslView(trouble.sign))) return StrCat(target, trouble.words);
  }
  return StrCat(message, "\nIs a gdn_server listening on ", target, "?");
}

}  // namespace gdn
