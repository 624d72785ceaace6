#include "client/cpp/step_place.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/ring_channel.h"
#include "client/cpp/ring_link.h"
#include "client/cpp/ring_reply.h"
#include "client/cpp/tensor_codec.h"
#include "ring/gdn_ring.h"

namespace gdn {
namespace {

constexpr uint64_t kMoreMessageBytes = 4096;  // that later messages may have

// The tensors of the request's input, in the order of its fields; those beyond the input's are null.
template <typename Request>
std::array<const v1::Tensor*, StepPlace::kMostInputs> TensorsOf(const Request& request) {
  if (request.has_hidden_states()) return {&request.hidden_states().hidden_states()};
  if (request.has_projected()) {
    const v1::ProjectedInput& in = request.projected();
    return {&in.mixed_qkv(), &in.z(), &in.b(), &in.a()};
  }
  const v1::DeltaRuleInput& in = request.delta_rule();
  return {&in.q(), &in.k(), &in.v(), &in.g(), &in.beta()};
}

absl::StatusOr<uint64_t> BytesOf(const v1::Tensor& tensor) {
  if (!tensor.data().empty() || tensor.has_shared()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
                     "a tensor in a place has its data there, and neither in the request nor in shared memory");
  }
  if (tensor.shape().empty() && tensor.dtype() == v1::DTYPE_UNSPECIFIED) return 0;  // not set
  GDN_ASSIGN_OR_RETURN(const DType dtype, FromProtoDType(tensor.dtype()));
  GDN_ASSIGN_OR_RETURN(const int64_t elements,
                       CheckedElementCount(std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())));
  return static_cast<uint64_t>(elements) * DTypeSize(dtype);
}

template <typename Request>
absl::StatusOr<std::array<uint64_t, StepPlace::kMostInputs>> SizesOf(const Request& request) {
  std::array<uint64_t, StepPlace::kMostInputs> sizes = {};
  const auto tensors = TensorsOf(request);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] == nullptr) continue;
    GDN_ASSIGN_OR_RETURN(sizes[i], BytesOf(*tensors[i]));
  }
  return sizes;
}

absl::StatusOr<v1::StepResponse> Send(Client& client, const v1::StepRequest& request, const CallOptions& call) {
  return client.Step(request, call);
}
absl::StatusOr<v1::DecodeResponse> Send(Client& client, const v1::DecodeRequest& request, const CallOptions& call) {
  return client.Decode(request, call);
}
absl::StatusOr<v1::PrefillResponse> Send(Client& client, const v1::PrefillRequest& request, const CallOptions& call) {
  return client.Prefill(request, call);
}

}  // namespace

struct StepPlace::InRing {
  gdn_ring_place place;
};

template <typename Request>
absl::StatusOr<std::unique_ptr<StepPlace>> StepPlace::MakeFor(Client& client, const Request& request) {
  GDN_ASSIGN_OR_RETURN(const auto bytes, SizesOf(request));
  // Before memory is taken: no step of more can be sent, by a ring or in a message.
  constexpr uint64_t kMostBytes = std::numeric_limits<int32_t>::max();
  for (uint64_t left = kMostBytes; const uint64_t each : bytes) {
    if (each > left) {
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kMessageTooLarge,
                       StrCat("the tensors have more than ", kMostBytes, " bytes; give a step fewer rows or tokens"));
    }
    left -= each;
  }
  return std::unique_ptr<StepPlace>(new StepPlace(client, bytes));
}
absl::StatusOr<std::unique_ptr<StepPlace>> StepPlace::Make(Client& client, const v1::StepRequest& request) {
  return MakeFor(client, request);
}
absl::StatusOr<std::unique_ptr<StepPlace>> StepPlace::Make(Client& client, const v1::DecodeRequest& request) {
  return MakeFor(client, request);
}
absl::StatusOr<std::unique_ptr<StepPlace>> StepPlace::Make(Client& client, const v1::PrefillRequest& request) {
  return MakeFor(client, request);
}

StepPlace::StepPlace(Client& client, const std::array<uint64_t, kMostInputs>& bytes) : client_(client), bytes_(bytes) {
  for (size_t i = 0; i < kMostInputs; ++i) own_[i].resize(bytes_[i]);
}

StepPlace::~StepPlace() {
  if (ring_ != nullptr) gdn_ring_return_place(ring_->ring_, &place_->place);
}

absl::Span<char> StepPlace::input(size_t number) {
  if (number >= kMostInputs) return {};
  if (ring_ == nullptr) return absl::MakeSpan(own_[number]);
  return {static_cast<char*>(place_->place.tensors[number]), bytes_[number]};
}

void StepPlace::LeaveRing() {
  if (ring_ == nullptr) return;
  for (size_t i = 0; i < kMostInputs; ++i) {
    const absl::Span<char> from = input(i);
    own_[i].assign(from.data() == nullptr ? "" : from.data(), from.size());
  }
  gdn_ring_return_place(ring_->ring_, &place_->place);
  place_ = nullptr;
  ring_ = nullptr;
}

void StepPlace::EnterRing(uint64_t message_bytes, uint64_t reply_room, absl::Duration& timeout) {
  std::shared_ptr<RingChannel> ring = client_.ring_ == nullptr ? nullptr : client_.ring_->ForCall(timeout);
  if (ring == nullptr) return;
  gdn_ring_request sizes = {};
  sizes.message_bytes = message_bytes + kMoreMessageBytes;
  std::ranges::copy(bytes_, sizes.tensor_bytes);
  sizes.reply_room = reply_room;
  auto place = std::make_unique<InRing>();
  // Others may use all of the ring now; a message is better than waiting for them.
  if (gdn_ring_take_place(ring->ring_, &sizes, /*timeout_us=*/1, &place->place) != GDN_RING_OK) return;
  for (size_t i = 0; i < kMostInputs; ++i) {
    if (bytes_[i] > 0) std::memcpy(place->place.tensors[i], own_[i].data(), bytes_[i]);
    own_[i] = {};
  }
  place_ = std::move(place);
  ring_ = std::move(ring);
}

template <typename Response, typename Request>
absl::StatusOr<Response> StepPlace::CallAs(uint32_t method, const Request& request, const CallOptions& call) {
  output_ = {};
  GDN_ASSIGN_OR_RETURN(const auto sizes, SizesOf(request));
  if (sizes != bytes_) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape,
                     StrCat("the request's first tensor has ", sizes[0], " bytes, and that of the place ", bytes_[0],
                            "; make a place for each size of step"));
  }
  request.SerializeToString(&message_);
  CallOptions left = call;
  left.timeout = call.timeout.value_or(client_.options_.default_timeout);
  if (ring_ != nullptr && !ring_->open()) LeaveRing();
  if (ring_ == nullptr) EnterRing(message_.size(), RingReplyRoom(request, bytes_), *left.timeout);
  Response response;
  if (ring_ != nullptr) {
    gdn_ring_reply reply;
    const int end = gdn_ring_call_in(ring_->ring_, &place_->place, method, message_.data(), message_.size(),
                                     RingTimeoutUs(*left.timeout), &reply);
    if (end != GDN_RING_TOO_LARGE && end != GDN_RING_FORKED) {
      GDN_RETURN_IF_ERROR(RingCallStatus(end, *left.timeout));
      GDN_RETURN_IF_ERROR(ReadRingReply(reply, response));
      output_ = {static_cast<const char*>(reply.output), reply.output_bytes};
      return response;
    }
  }
  Request whole = request;
  const auto tensors = TensorsOf(whole);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (bytes_[i] > 0) const_cast<v1::Tensor*>(tensors[i])->set_data(input(i).data(), bytes_[i]);  // whole's own
  }
  GDN_ASSIGN_OR_RETURN(response, Send(client_, whole, left));
  own_output_ = std::move(*response.mutable_output()->mutable_data());
  response.mutable_output()->clear_data();
  output_ = own_output_;
  return response;
}

absl::StatusOr<v1::StepResponse> StepPlace::Call(const v1::StepRequest& request, const CallOptions& call) {
  return CallAs<v1::StepResponse>(GDN_RING_STEP, request, call);
}
absl::StatusOr<v1::DecodeResponse> StepPlace::Call(const v1::DecodeRequest& request, const CallOptions& call) {
  return CallAs<v1::DecodeResponse>(GDN_RING_DECODE, request, call);
}
absl::StatusOr<v1::PrefillResponse> StepPlace::Call(const v1::PrefillRequest& request, const CallOptions& call) {
  return CallAs<v1::PrefillResponse>(GDN_RING_PREFILL, request, call);
}

}  // namespace gdn
