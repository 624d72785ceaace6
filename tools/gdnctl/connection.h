// How gdnctl's commands reach a server: by the flags of every command.
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

// Reads the files that the flags name. UsageError where they do not go together; INVALID_ARGUMENT where one cannot be
// read.
absl::Status PrepareConnection();

// After PrepareConnection.
std::shared_ptr<grpc::ChannelCredentials> CredentialsByFlags();

}  // namespace gdn
