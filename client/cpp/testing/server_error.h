// An error as the server sends it: a gRPC status with google.rpc.ErrorInfo.
//
// Thread safety: a free function. Ownership: none.
//
//   return ServerError(grpc::StatusCode::ABORTED, reason::kSessionBusy, "busy");
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace gdn {

inline grpc::Status ServerError(grpc::StatusCode code, std::string_view reason, const std::string& message,
                                const std::map<std::string, std::string>& metadata = {}) {
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("gdn.v1");
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  details.add_details()->PackFrom(info);
  return grpc::Status(code, message, details.SerializeAsString());
}

inline grpc::Status NoSession() {
  return ServerError(grpc::StatusCode::NOT_FOUND, reason::kSessionNotFound, "no such session");
}

}  // namespace gdn
