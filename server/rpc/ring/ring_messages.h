// Reads the requests of a ring's submissions. Bytes are copied out of the ring before they are looked at.
//
// Thread safety: free functions. Ownership: as step_wire.h.
//
//   v1::StepRequest request;
//   GDN_ASSIGN_OR_RETURN(ReceivedTensors tensors, ReadRingRequest(ring, submission, max_bytes, memory, may_parse,
//                                                                 request));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/ring/ring.h"
#include "server/rpc/steps/step_wire.h"
#include "state_store/host_block_pool.h"

namespace gdn {

// Parses the submission's message into `request`, and copies its tensors. The submission's ranges must be inside the
// ring's area. A request of more than `max_bytes` is read without its tensors, so that the caller can refuse it and
// name the session. If `memory` has no block, the tensors' data are put into `request`. INVALID_ARGUMENT
// (MALFORMED_MESSAGE) also if the message has data of its own for a tensor that comes apart; errors of `may_parse`.
absl::StatusOr<ReceivedTensors> ReadRingRequest(const Ring& ring, const gdn_ring_submission& submission,
                                                int64_t max_bytes, HostBlockPool& memory, MayParse may_parse,
                                                v1::StepRequest& request);
absl::StatusOr<ReceivedTensors> ReadRingRequest(const Ring& ring, const gdn_ring_submission& submission,
                                                int64_t max_bytes, HostBlockPool& memory, MayParse may_parse,
                                                v1::DecodeRequest& request);
absl::StatusOr<ReceivedTensors> ReadRingRequest(const Ring& ring, const gdn_ring_submission& submission,
                                                int64_t max_bytes, HostBlockPool& memory, MayParse may_parse,
                                                v1::PrefillRequest& request);
// The same for a message without tensors.
absl::Status ReadRingMessage(const Ring& ring, const gdn_ring_submission& submission, MayParse may_parse,
                             google::protobuf::Message& request);

}  // namespace gdn
