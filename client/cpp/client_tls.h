// TLS credentials for a client, made from files.
//
// Thread safety: a free function. Ownership: none; the files are read once.
//
//   GDN_ASSIGN_OR_RETURN(const auto credentials, TlsCredentialsOf({.ca = "ca.crt"}));
//   auto client = Client::Connect("gdn.example:50061", credentials, {.token = "Bearer TOKEN"});
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"

namespace gdn {

// Names of PEM files.
struct ClientTls {
  std::string ca = {};           // authority that issued the server's certificate; "": those that the system trusts
  std::string certificate = {};  // the client's own certificate, for mTLS; "": none
  std::string key = {};          // private key of `certificate`, without a password
};

// Makes credentials; the server's certificate must be for the host in the client's target. INVALID_ARGUMENT if a file
// cannot be read or is not PEM. The same if only one of certificate and key is given. gRPC checks the contents when it
// connects; if they are wrong, calls return UNAVAILABLE.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> TlsCredentialsOf(const ClientTls& tls);

}  // namespace gdn
