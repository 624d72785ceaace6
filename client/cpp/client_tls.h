// How a client speaks TLS, by files.
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

// Names of files, in PEM.
struct ClientTls {
  std::string ca = {};           // who may have issued the server's certificate; "": whom the system trusts
  std::string certificate = {};  // the client's own, for mTLS; "": none
  std::string key = {};          // of `certificate`, without a password
};

// The server's certificate has to be for the host that the client's target names. INVALID_ARGUMENT where a file cannot
// be read, or a certificate comes without its key. What is in one is looked at when the client connects: UNAVAILABLE.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> TlsCredentialsOf(const ClientTls& tls);

}  // namespace gdn
