// Turns the end of a ring's call into the status and the response that the client's calls return.
//
// Thread safety: free functions. Ownership: none.
//
//   const int end = gdn_ring_call(ring, GDN_RING_STEP, &request, timeout_us, &reply);
//   GDN_RETURN_IF_ERROR(RingCallStatus(end, timeout));
//   const absl::Status status = ReadRingReply(reply, response);  // the output's bytes are apart
#pragma once

#include <cstdint>

#include <google/protobuf/message.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gdn/v1/service.pb.h"
#include "ring/gdn_ring.h"

namespace gdn {

// Returns the timeout in a ring's form: 0 for none, else at least a microsecond.
uint64_t RingTimeoutUs(absl::Duration timeout);

// Returns the bytes that the reply of a step with these rows and tensors is expected to have at most.
uint64_t RingReplyRoom(const v1::StepRequest& request, absl::Span<const uint64_t> tensor_bytes);
uint64_t RingReplyRoom(const v1::DecodeRequest& request, absl::Span<const uint64_t> tensor_bytes);
uint64_t RingReplyRoom(const v1::PrefillRequest& request, absl::Span<const uint64_t> tensor_bytes);
uint64_t RingReplyRoom(const v1::AcceptTokensRequest& request);

// OK for GDN_RING_OK. Otherwise DEADLINE_EXCEEDED; UNAVAILABLE if the ring has ended; RESOURCE_EXHAUSTED if this
// process has no memory; FAILED_PRECONDITION in a fork; OUT_OF_RANGE if the call does not fit the ring, which
// IsTooLargeForRing tells from the server's errors.
absl::Status RingCallStatus(int end, absl::Duration timeout);
bool IsTooLargeForRing(const absl::Status& status);

// Returns the server's error, or parses the response. UNKNOWN or INTERNAL if it is damaged.
absl::Status ReadRingReply(const gdn_ring_reply& reply, google::protobuf::Message& response);

}  // namespace gdn
