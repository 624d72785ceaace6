// The credentials of `gdn_bench serve --suite=secure`: a folder that the first commands of docs/how-to/secure.md make.
//
// Thread safety: free functions. Ownership: none; errors name the file.
//
//   GDN_ASSIGN_OR_RETURN(const auto channel, SecureChannelAlone("127.0.0.1:50061", folder, /*with_token=*/true));
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/security/server_credentials.h>

#include "absl/status/statusor.h"

namespace gdn::bench {

// Returns flags of gdn_server: TLS that requires client certificates, tokens, and an HTTP listener on a free loopback
// port. Does not check that the files exist.
std::vector<std::string> SecureServerFlags(const std::string& folder);

// Returns the echo server's credentials from `folder`: TLS that requires client certificates, as SecureServerFlags.
// INVALID_ARGUMENT if a file cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> SecureServerCredentials(const std::string& folder);

// Makes a channel with a connection of its own and the client's certificate; with `with_token`, also its token. The
// server's certificate must be for localhost. INVALID_ARGUMENT if a file cannot be read.
absl::StatusOr<std::shared_ptr<grpc::Channel>> SecureChannelAlone(const std::string& target, const std::string& folder,
                                                                  bool with_token);

}  // namespace gdn::bench
