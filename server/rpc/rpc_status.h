// absl::Status to what travels: the only place where the two meet.
//
// Thread safety: free functions. Every error carries google.rpc.ErrorInfo (reason, domain "gdn.v1", metadata), and
// RetryInfo where waiting helps.
//
//   reactor->Finish(ToGrpcStatus(status));
//   *response.mutable_status() = ToRpcStatus(status);
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/rpc/status.pb.h"

namespace gdn {

// A long message or value is cut in the middle, and metadata that has no room is left out: all of it is less than 8 KiB
// of trailers.
google::rpc::Status ToRpcStatus(const absl::Status& status);

// Details are in `grpc-status-details-bin`.
grpc::Status ToGrpcStatus(const absl::Status& status);

// `error`, of a call without partial_ok, with the rows whose steps have happened all the same (ascending) as metadata
// "applied_rows": "0-3,7". Nothing is added where there are none; a long list is cut, and ends with "..".
absl::Status WithAppliedRows(absl::Status error, absl::Span<const size_t> rows);

}  // namespace gdn
