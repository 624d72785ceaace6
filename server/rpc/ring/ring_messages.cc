#include "server/rpc/ring/ring_messages.h"

#include <google/protobuf/message.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "server/rpc/transport/parsed_bytes.h"

namespace gdn {
namespace {

absl::Status MalformedTensor(std::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kMalformedMessage, why);
}

// The tensors of the request's input, by field. Those beyond the input's are null.
template <typename Request>
std::array<v1::Tensor*, kMaxStepFields> TensorsOf(Request& request) {
  if (request.has_hidden_states()) return {request.mutable_hidden_states()->mutable_hidden_states()};
  if (request.has_projected()) {
    v1::ProjectedInput& in = *request.mutable_projected();
    return {in.mutable_mixed_qkv(), in.mutable_z(), in.mutable_b(), in.mutable_a()};
  }
  if (!request.has_delta_rule()) return {};
  v1::DeltaRuleInput& in = *request.mutable_delta_rule();
  return {in.mutable_q(), in.mutable_k(), in.mutable_v(), in.mutable_g(), in.mutable_beta()};
}

template <typename Request>
absl::StatusOr<ReceivedTensors> ReadApart(const Ring& ring, const gdn_ring_submission& submission, int64_t max_bytes,
                                          HostBlockPool& memory, MayParse may_parse, Request& request) {
  GDN_RETURN_IF_ERROR(ReadRingMessage(ring, submission, may_parse, request));
  ReceivedTensors received;
  uint64_t bytes = 0, aligned = 0;
  for (const uint64_t tensor : submission.tensor_bytes) {
    bytes += tensor;
    aligned += gdn_ring_aligned(tensor);
  }
  received.message_bytes = static_cast<int64_t>(submission.message_bytes + bytes);
  if (bytes == 0) return received;
  if (received.message_bytes > max_bytes) return received;  // the caller refuses it
  const auto tensors = TensorsOf(request);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (submission.tensor_bytes[i] == 0) continue;
    if (tensors[i] == nullptr) return MalformedTensor("a tensor came that the request's input has not");
    if (!tensors[i]->data().empty() || tensors[i]->has_shared()) {
      return MalformedTensor("a tensor's data are both in the message and beside it; send them once");
    }
  }
  auto block = memory.TakeForCall(aligned);
  if (block.ok()) received.block = *std::move(block);
  uint64_t from = submission.request_offset + gdn_ring_aligned(submission.message_bytes);
  char* to = received.block.valid() ? received.block.chars() : nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t size = submission.tensor_bytes[i];
    if (to == nullptr) {
      // No block, for example because the device is lost: errors of the request are still reported first.
      if (size > 0) tensors[i]->set_data(ring.At(from), size);
    } else if (size > 0) {
      std::memcpy(to, ring.At(from), size);
      received.data[i] = {to, size};
      to += gdn_ring_aligned(size);
    }
    from += gdn_ring_aligned(size);
  }
  if (!received.block.valid()) return received;
  for (size_t i = 0; i < tensors.size(); ++i) {
    // Beside tensors that come apart, one may have its data in the message; the checks see those where they are.
    if (tensors[i] != nullptr && submission.tensor_bytes[i] == 0) received.data[i] = tensors[i]->data();
  }
  return received;
}

}  // namespace

absl::Status ReadRingMessage(const Ring& ring, const gdn_ring_submission& submission, MayParse may_parse,
                             google::protobuf::Message& request) {
  const std::string message(ring.At(submission.request_offset), submission.message_bytes);
  if (message.size() > kPlainBytes) GDN_RETURN_IF_ERROR(may_parse(ParsedBytes(*request.GetDescriptor(), message)));
  if (request.ParseFromString(message)) return absl::OkStatus();
  return MalformedMessage();
}

absl::StatusOr<ReceivedTensors> ReadRingRequest(const Ring& ring, const gdn_ring_submission& submission,
                                                int64_t max_bytes, HostBlockPool& memory, MayParse may_parse,
                                                v1::StepRequest& request) {
  return ReadApart(ring, submission, max_bytes, memory, may_parse, request);
}
absl::StatusOr<ReceivedTensors> ReadRingRequest(const Ring& ring, const gdn_ring_submission& submission,
                                                int64_t max_bytes, HostBlockPool& memory, MayParse may_parse,
                                                v1::DecodeRequest& request) {
  return ReadApart(ring, submission, max_bytes, memory, may_parse, request);
}
absl::StatusOr<ReceivedTensors> ReadRingRequest(const Ring& ring, const gdn_ring_submission& submission,
                                                int64_t max_bytes, HostBlockPool& memory, MayParse may_parse,
                                                v1::PrefillRequest& request) {
  return ReadApart(ring, submission, max_bytes, memory, may_parse, request);
}

}  // namespace gdn
