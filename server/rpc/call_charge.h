// What a call is charged for while it waits or runs: its messages, and what it takes beside them.
//
// Thread safety: free functions.
//
//   GDN_ASSIGN_OR_RETURN(ByteCharge charge, ChargeCall(context, caller, request.Length()));
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "server/admission/byte_ledger.h"
#include "server/rpc/caller.h"
#include "server/rpc/service_context.h"

namespace gdn {

// What any call takes, whatever it says: gRPC's part, the reactor, parsed messages, a thread's scratch.
inline constexpr int64_t kCallBytes = int64_t{16} << 10;

// RESOURCE_EXHAUSTED (BYTES_EXHAUSTED); the error of a caller that is not allowed to call.
inline absl::StatusOr<ByteCharge> ChargeCall(const ServiceContext& context, const Caller& caller,
                                             size_t message_bytes) {
  GDN_RETURN_IF_ERROR(caller.allowed);
  return context.ledger.TryCharge(BytePool::kCalls, caller.account, kCallBytes + static_cast<int64_t>(message_bytes));
}

}  // namespace gdn
