// Reads step requests and writes step replies. They are protobuf messages on the wire, but protobuf never sees the
// tensors' bytes. A request's bytes are copied once, from gRPC's buffers to memory that a device can copy from. A
// reply's bytes are lent to gRPC from the memory that the step wrote them to.
//
// Protobuf parses unusual requests as a whole (a field that occurs twice, malformed bytes), so that every request means
// what protobuf says.
// Thread safety: free functions. Ownership: a reply's bytes keep its block alive until gRPC has sent them; the
// HostBlockPool must outlive them.
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
  int64_t message_bytes = 0;  // size of the whole request
  // Pointers into `block`. If that is not valid, the data are in the parsed message, or were skipped because the
  // request is too large.
  TensorBytes data;
  HostBlock block;

  const TensorBytes* bytes() const { return block.valid() ? &data : nullptr; }
};

// The data of a reply's output, which its message does not contain.
struct ReplyOutput {
  HostBlock block;
  size_t bytes = 0;
};

// A request with no more bytes than this beside its tensors' data is parsed without asking, because its parsed form is
// small.
inline constexpr size_t kPlainBytes = size_t{4} << 10;
// INVALID_ARGUMENT (MALFORMED_MESSAGE): the bytes are no message of the request's type.
absl::Status MalformedMessage();

// Called before a request with more than kPlainBytes beside its tensors' data is parsed. `bytes`: upper bound of the
// memory that the parsed message takes. Any status but OK refuses the request.
using MayParse = absl::FunctionRef<absl::Status(int64_t bytes)>;

// Parses `wire` into `request` and the tensors' data, and clears `wire`, also after an error. A request of more than
// `max_bytes` is read without its tensors' data, so that the caller can refuse it and name the session. If `memory` has
// no block, the data stay in `request`. INVALID_ARGUMENT (MALFORMED_MESSAGE), errors of `may_parse`.
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::PrefillRequest& request);
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::DecodeRequest& request);
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StepRequest& request);
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StreamPrefillRequest& request);
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StreamDecodeRequest& request);
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StreamStepRequest& request);

// Serializes `reply` with the output's data, and takes the output tensor out of `reply`. gRPC keeps `output.block`
// until the bytes are sent.
grpc::ByteBuffer WriteStepReply(v1::PrefillResponse& reply, ReplyOutput output);
grpc::ByteBuffer WriteStepReply(v1::DecodeResponse& reply, ReplyOutput output);
grpc::ByteBuffer WriteStepReply(v1::StepResponse& reply, ReplyOutput output);
grpc::ByteBuffer WriteStepReply(v1::StreamPrefillResponse& reply, ReplyOutput output);
grpc::ByteBuffer WriteStepReply(v1::StreamDecodeResponse& reply, ReplyOutput output);
grpc::ByteBuffer WriteStepReply(v1::StreamStepResponse& reply, ReplyOutput output);

}  // namespace gdn
