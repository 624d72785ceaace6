#include "client/cpp/ring_channel.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/ring_reply.h"
#include "client/cpp/share_memory_call.h"
#include "ring/gdn_ring.h"
#include "ring/process_mark.h"

namespace gdn {
namespace {

constexpr uint64_t kBesideTensors = 8192;  // what a call takes of a ring at most, beside its message's bytes, both ways

// Gives `to` the dtype and shape of a tensor, and the request the bytes.
void TakeApart(const v1::Tensor& tensor, int field, v1::Tensor& to, gdn_ring_request& request) {
  to.set_dtype(tensor.dtype());
  *to.mutable_shape() = tensor.shape();
  if (tensor.has_shared()) *to.mutable_shared() = tensor.shared();
  request.tensors[field] = tensor.data().data();
  request.tensor_bytes[field] = tensor.data().size();
}

template <typename Request>
void TakeInputApart(const Request& from, Request& to, gdn_ring_request& request) {
  if (from.has_hidden_states()) {
    TakeApart(from.hidden_states().hidden_states(), 0, *to.mutable_hidden_states()->mutable_hidden_states(), request);
  } else if (from.has_projected()) {
    const v1::ProjectedInput& in = from.projected();
    v1::ProjectedInput& out = *to.mutable_projected();
    if (in.has_mixed_qkv()) TakeApart(in.mixed_qkv(), 0, *out.mutable_mixed_qkv(), request);
    if (in.has_z()) TakeApart(in.z(), 1, *out.mutable_z(), request);
    if (in.has_b()) TakeApart(in.b(), 2, *out.mutable_b(), request);
    if (in.has_a()) TakeApart(in.a(), 3, *out.mutable_a(), request);
  } else if (from.has_delta_rule()) {
    const v1::DeltaRuleInput& in = from.delta_rule();
    v1::DeltaRuleInput& out = *to.mutable_delta_rule();
    if (in.has_q()) TakeApart(in.q(), 0, *out.mutable_q(), request);
    if (in.has_k()) TakeApart(in.k(), 1, *out.mutable_k(), request);
    if (in.has_v()) TakeApart(in.v(), 2, *out.mutable_v(), request);
    if (in.has_g()) TakeApart(in.g(), 3, *out.mutable_g(), request);
    if (in.has_beta()) TakeApart(in.beta(), 4, *out.mutable_beta(), request);
    if (in.has_scale()) out.set_scale(in.scale());
    out.set_use_qk_l2norm(in.use_qk_l2norm());
    out.set_allow_beta_to_two(in.allow_beta_to_two());
  }
  to.set_layer(from.layer());
  to.set_request_id(from.request_id());
  to.set_output_dtype(from.output_dtype());
  to.set_allow_non_finite(from.allow_non_finite());
  if (from.has_output_shared()) *to.mutable_output_shared() = from.output_shared();
}

// Return the request without the bytes of its tensors, which `request` gets. A message's fields are copied one by one,
// so that the bytes are not; RingChannelTest holds them against the descriptor.
v1::StepRequest WithoutData(const v1::StepRequest& from, gdn_ring_request& request) {
  v1::StepRequest to;
  TakeInputApart(from, to, request);
  *to.mutable_rows() = from.rows();
  to.set_partial_ok(from.partial_ok());
  return to;
}
v1::DecodeRequest WithoutData(const v1::DecodeRequest& from, gdn_ring_request& request) {
  v1::DecodeRequest to;
  TakeInputApart(from, to, request);
  *to.mutable_sessions() = from.sessions();
  *to.mutable_lengths() = from.lengths();
  *to.mutable_expected_token_counts() = from.expected_token_counts();
  *to.mutable_session_epochs() = from.session_epochs();
  *to.mutable_draft_parents() = from.draft_parents();
  to.set_partial_ok(from.partial_ok());
  to.set_draft(from.draft());
  return to;
}
v1::PrefillRequest WithoutData(const v1::PrefillRequest& from, gdn_ring_request& request) {
  v1::PrefillRequest to;
  TakeInputApart(from, to, request);
  to.set_session(from.session());
  if (from.has_expected_token_count()) to.set_expected_token_count(from.expected_token_count());
  if (from.has_session_epoch()) to.set_session_epoch(from.session_epoch());
  return to;
}

absl::Status NoRing(std::string_view why) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSharedMemoryNotOffered,
                   StrCat(why, "; send steps in messages"));
}

template <typename Response>
absl::Status Send(gdn_ring* ring, uint32_t method, gdn_ring_request& request, absl::Duration timeout,
                  Response& response) {
  gdn_ring_reply reply;
  GDN_RETURN_IF_ERROR(RingCallStatus(gdn_ring_call(ring, method, &request, RingTimeoutUs(timeout), &reply), timeout));
  absl::Status status = ReadRingReply(reply, response);
  if constexpr (requires { response.mutable_output(); }) {
    if (status.ok() && reply.output_bytes > 0) response.mutable_output()->set_data(reply.output, reply.output_bytes);
  }
  gdn_ring_release(ring, &reply);
  return status;
}

template <typename Request, typename Response>
absl::Status SendStep(gdn_ring* ring, uint32_t method, const Request& request, absl::Duration timeout,
                      Response& response) {
  gdn_ring_request sent = {};
  const std::string message = WithoutData(request, sent).SerializeAsString();
  sent.message = message.data();
  sent.message_bytes = message.size();
  sent.reply_room = RingReplyRoom(request, sent.tensor_bytes);
  return Send(ring, method, sent, timeout, response);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingChannel>> RingChannel::Open(v1::GdnService::StubInterface& stub,
                                                               std::unique_ptr<grpc::ClientContext> context,
                                                               const RingOptions& options, absl::Duration timeout) {
  const absl::Time begun = absl::Now();
  v1::ShareMemoryRequest request;
  request.set_bytes(options.area_bytes);
  request.set_ring_entries(options.entries);
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<ShareMemoryCall> keeper,
                       ShareMemoryCall::Start(stub, std::move(context), request));
  GDN_ASSIGN_OR_RETURN(const v1::ShareMemoryResponse response, keeper->WaitForResponse(timeout));
  if (!response.has_ring()) return NoRing("the server is older than rings");
  if (response.ring().token().size() != GDN_RING_TOKEN_BYTES) return NoRing("the server's token has another form");
  const int64_t spin_us = std::clamp<int64_t>(absl::ToInt64Microseconds(options.spin), 0, 1'000'000);
  const int64_t left_us = std::max<int64_t>(absl::ToInt64Microseconds(timeout - (absl::Now() - begun)), 0);
  gdn_ring* ring = nullptr;
  std::array<char, 256> why = {};
  if (gdn_ring_open(response.ring().socket_path().c_str(), response.ring().token().data(),
                    static_cast<uint32_t>(spin_us), static_cast<uint64_t>(left_us), &ring, why.data(),
                    why.size()) != 0) {
    return NoRing(why.data());
  }
  return std::unique_ptr<RingChannel>(new RingChannel(std::move(keeper), ring));
}

RingChannel::RingChannel(std::unique_ptr<ShareMemoryCall> keeper, gdn_ring* ring)
    : keeper_(std::move(keeper)), ring_(ring), owner_(gdn_process_mark()) {}

RingChannel::~RingChannel() {
  gdn_ring_close(ring_);
  // In a fork no thread of gRPC runs, so the call's end would be waited for without end. The call is the parent's.
  if (gdn_process_mark() != owner_) static_cast<void>(keeper_.release());
}

bool RingChannel::open() const {
  // A killed server leaves the ring's memory as it was; gRPC sees the end of its connection.
  return gdn_ring_is_open(ring_) != 0 && keeper_->status().ok();
}

bool RingChannel::Takes(const google::protobuf::Message& request) const {
  return 2 * request.ByteSizeLong() + kBesideTensors <= gdn_ring_area_bytes(ring_);
}

absl::Status RingChannel::Call(const v1::StepRequest& request, absl::Duration timeout, v1::StepResponse& response) {
  return SendStep(ring_, GDN_RING_STEP, request, timeout, response);
}
absl::Status RingChannel::Call(const v1::DecodeRequest& request, absl::Duration timeout, v1::DecodeResponse& response) {
  return SendStep(ring_, GDN_RING_DECODE, request, timeout, response);
}
absl::Status RingChannel::Call(const v1::PrefillRequest& request, absl::Duration timeout,
                               v1::PrefillResponse& response) {
  return SendStep(ring_, GDN_RING_PREFILL, request, timeout, response);
}
absl::Status RingChannel::Call(const v1::AcceptTokensRequest& request, absl::Duration timeout,
                               v1::AcceptTokensResponse& response) {
  gdn_ring_request sent = {};
  const std::string message = request.SerializeAsString();
  sent.message = message.data();
  sent.message_bytes = message.size();
  sent.reply_room = RingReplyRoom(request);
  return Send(ring_, GDN_RING_ACCEPT_TOKENS, sent, timeout, response);
}

}  // namespace gdn
