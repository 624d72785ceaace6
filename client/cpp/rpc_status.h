// The service's statuses as absl::Status, with the reason and metadata of their ErrorInfo.
//
// The inverse of the server's conversion with base/error.h. If the server made an error with MakeError, ErrorReason()
// and ErrorMetadata() return the same values here. Thread safety: free functions, no shared state. Ownership:
// everything is copied into the status.
//
//   absl::Status status = StatusFromGrpc(stub->Prefill(&context, request, &response));
//   if (ErrorReason(status) == reason::kSessionBusy) { ... }
//   if (auto delay = RetryDelay(status)) absl::SleepFor(*delay);
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace gdn {

// The outcome of a call. Reason, metadata and RetryInfo come from `grpc-status-details-bin`; code and message come from
// gRPC itself. So damaged details lose only the reason. Errors that gRPC makes here have no reason (for example no
// connection, or a deadline that passed).
absl::Status StatusFromGrpc(const grpc::Status& status);

// The outcome of a stream message or a batch row. Code 0 is OK. A code that gRPC does not know becomes kUnknown.
absl::Status StatusFromRpc(const google::rpc::Status& status);

// Time that the server asks to wait before a retry; nullopt if it does not say.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

}  // namespace gdn
