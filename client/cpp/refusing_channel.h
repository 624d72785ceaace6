// A channel for a target that nothing can be connected to: each call ends with what is wrong with the target.
//
// Thread safety: as any channel. Ownership: shared.
//
//   auto channel = RefusingChannel(CheckTarget("127.0.0.1:99999"));  // gRPC itself would take port 34463
#pragma once

#include <memory>

#include <grpcpp/channel.h>

#include "absl/status/status.h"

namespace gdn {

// `refusal` is an error.
std::shared_ptr<grpc::Channel> RefusingChannel(const absl::Status& refusal);

}  // namespace gdn
