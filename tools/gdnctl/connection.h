// Connects gdnctl's commands to a server, as the common flags say.
//
// Thread safety: for the main thread. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(PrepareConnection());  // once, when the flags are known
//   const auto client = ConnectByFlags();      // tools/gdnctl/command.h
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "grpcpp/security/credentials.h"

namespace gdn {

// Reads the files that the flags name. UsageError if --target or --timeout is invalid, or flags contradict each other.
// INVALID_ARGUMENT if a file cannot be read.
absl::Status PrepareConnection();

// Returns the channel credentials: those of the TLS flags, or insecure ones without such flags. Call after
// PrepareConnection.
std::shared_ptr<grpc::ChannelCredentials> CredentialsByFlags();

}  // namespace gdn
