// Charges a call for the memory that it uses while it waits or runs: its messages, and a fixed part beside them.
//
// Thread safety: free functions.
//
//   GDN_ASSIGN_OR_RETURN(ByteCharge charge, ChargeCall(ledger, caller, request.Length()));
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "server/admission/byte_ledger.h"
#include "server/rpc/callers/caller.h"

namespace gdn {

// Bytes charged for every call beside its message: gRPC's objects, the reactor, small parsed messages, a thread's
// scratch.
inline constexpr int64_t kCallBytes = int64_t{16} << 10;

// Charges the caller's account kCallBytes and `message_bytes` in the pool kCalls, until the result is destroyed.
// RESOURCE_EXHAUSTED (BYTES_EXHAUSTED, QUOTA_EXCEEDED), or the error in caller.allowed.
inline absl::StatusOr<ByteCharge> ChargeCall(ByteLedger& ledger, const Caller& caller, size_t message_bytes) {
  GDN_RETURN_IF_ERROR(caller.allowed);
  return ledger.TryCharge(BytePool::kCalls, caller.account, kCallBytes + static_cast<int64_t>(message_bytes));
}

}  // namespace gdn
