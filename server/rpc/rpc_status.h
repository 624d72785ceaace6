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
#include "google/rpc/status.pb.h"

namespace gdn {

google::rpc::Status ToRpcStatus(const absl::Status& status);

// Details are in `grpc-status-details-bin`.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace gdn
