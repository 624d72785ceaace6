// Statuses of the service as absl::Status, with the reason and metadata of their ErrorInfo.
//
// The inverse of what the server does with base/error.h: an error made there by MakeError answers ErrorReason() and
// ErrorMetadata() here as it did there. Thread safety: free functions, no shared state. Ownership: everything is copied
// into the status.
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

// A call's outcome. Reason, metadata and RetryInfo come from `grpc-status-details-bin`; code and message always from
// gRPC itself, so damaged details cost no more than the reason. Errors that gRPC makes (no connection, a deadline that
// passed here) have no reason.
absl::Status StatusFromGrpc(const grpc::Status& status);

// The outcome of a stream message or of a batch row. Code 0 is OK; a code that gRPC does not know becomes kUnknown.
absl::Status StatusFromRpc(const google::rpc::Status& status);

// How long the server asks to wait before a retry; nullopt where it does not say.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

}  // namespace gdn
