// A channel for an invalid target: each call ends with the reason why the target is invalid.
//
// Thread safety: as for any channel. Ownership: shared.
//
//   auto channel = RefusingChannel(CheckTarget("127.0.0.1:99999"));  // gRPC itself would take port 34463
#pragma once

#include <memory>

#include <grpcpp/channel.h>

#include "absl/status/status.h"

namespace gdn {

// Makes a channel on which every call ends at once with the code and message of `refusal`, which must be an error.
// Reason and metadata are lost.
std::shared_ptr<grpc::Channel> RefusingChannel(const absl::Status& refusal);

}  // namespace gdn
