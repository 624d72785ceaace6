// Steps as they travel: protobuf's messages, but for the tensors' bytes, which it never sees. Those of a request are
// copied once, from where gRPC received them to memory that a device can be sent them from; those of a reply are lent
// to gRPC from where the step wrote them.
//
// What is no plain case (a field twice, bytes that are no message) is left to protobuf as a whole, so that a request
// means what protobuf says it means.
// Thread safety: free functions. Ownership: a reply's bytes keep its block until gRPC has sent them; the HostBlockPool
// must outlive them.
//
//   v1::DecodeRequest request;
//   GDN_ASSIGN_OR_RETURN(ReceivedTensors tensors, ReadStepRequest(wire, max_bytes, memory, may_parse, request));
//   ...
//   grpc::ByteBuffer reply = WriteStepReply(response, std::move(output));
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gdn/v1/step.pb.h"
#include "server/validation/step_input.h"
#include "state_store/host_block_pool.h"

namespace gdn {

struct ReceivedTensors {
  int64_t message_bytes = 0;  // of the whole request
  TensorBytes data;           // in `block`; where that is not valid, the data are in the message
  HostBlock block;

  const TensorBytes* bytes() const { return block.valid() ? &data : nullptr; }
};

// The data of a reply's output, which its message lacks.
struct ReplyOutput {
  HostBlock block;
  size_t bytes = 0;
};

// Asked before a request is parsed that has much beside its tensors' data: whether the message may take so many bytes.
using MayParse = absl::FunctionRef<absl::Status(int64_t bytes)>;

// Reads `wire`, and gives its memory back. A request of more than `max_bytes` is read without its tensors' data, so
// that it can be refused by name. INVALID_ARGUMENT (MALFORMED_MESSAGE); what `may_parse` says.
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::PrefillRequest& request);
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::DecodeRequest& request);
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StreamPrefillRequest& request);
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StreamDecodeRequest& request);

// `reply` with the output's data in it.
grpc::ByteBuffer WriteStepReply(v1::PrefillResponse& reply, ReplyOutput output);
grpc::ByteBuffer WriteStepReply(v1::DecodeResponse& reply, ReplyOutput output);
grpc::ByteBuffer WriteStepReply(v1::StreamPrefillResponse& reply, ReplyOutput output);
grpc::ByteBuffer WriteStepReply(v1::StreamDecodeResponse& reply, ReplyOutput output);

}  // namespace gdn
