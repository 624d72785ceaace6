// Converts absl::Status to the statuses that clients get. No other file does.
//
// Thread safety: free functions. Every error carries google.rpc.ErrorInfo (reason, domain "gdn.v1", metadata), and
// RetryInfo if waiting helps.
//
//   reactor->Finish(ToGrpcStatus(status));
//   *response.mutable_status() = ToRpcStatus(status);
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/rpc/status.pb.h"

namespace gdn {

// Converts a status and its metadata to the form that is sent, with RetryInfo if waiting may help. OK stays OK, and an
// error without a reason gets INTERNAL. Long messages and values are cut in the middle, and metadata that does not fit
// is left out, so that the trailers are smaller than 8 KiB.
google::rpc::Status ToRpcStatus(const absl::Status& status);

// Returns the reason in the status that ToRpcStatus has made of an error; "" if it is OK.
std::string ReasonOf(const google::rpc::Status& status);

// Converts a status for gRPC. The result of ToRpcStatus is sent in the trailer `grpc-status-details-bin`.
grpc::Status ToGrpcStatus(const absl::Status& status);

// For calls without partial_ok: returns `error` with the rows that were applied all the same (`rows`, ascending) as
// metadata "applied_rows": "0-3,7". No metadata is added if `rows` is empty. A long list is cut and ends with "..".
absl::Status WithAppliedRows(absl::Status error, absl::Span<const size_t> rows);

}  // namespace gdn
