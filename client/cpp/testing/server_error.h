// An error as the server sends it: a gRPC status with google.rpc.ErrorInfo.
//
// Thread safety: free functions. Ownership: none.
//
//   return ServerError(MakeError(absl::StatusCode::kAborted, reason::kSessionBusy, "busy"));
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "base/error.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace gdn {

inline google::rpc::Status ServerRpcError(const absl::Status& status) {
  google::rpc::Status details;
  if (status.ok()) return details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  google::rpc::ErrorInfo info;
  info.set_reason(ErrorReason(status));
  info.set_domain("gdn.v1");
  const ErrorMetadataMap metadata = ErrorMetadata(status);
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  details.add_details()->PackFrom(info);
  return details;
}

inline grpc::Status ServerError(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status details = ServerRpcError(status);
  return grpc::Status(static_cast<grpc::StatusCode>(details.code()), details.message(), details.SerializeAsString());
}

}  // namespace gdn
