// The calls of service_helpers.h's Caller.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/files/safetensors.h"
#include "base/hash.h"
#include "client/cpp/ring_channel.h"
#include "client/cpp/shared_memory.h"
#include "server/rpc/transport/rpc_status.h"
#include "tests/integration/support/service_helpers.h"

namespace gdn {
namespace {

using Stub = v1::GdnService::Stub;

// A request of a method on one session, which takes its name and nothing else that it needs.
template <typename Request>
Request Naming(const std::string& id) {
  Request request;
  request.set_name("sessions/" + id);
  return request;
}

// The one field of a response that callers look at.
template <typename Response, typename Field>
Outcome<Field> FieldOf(const Outcome<Response>& called, const Field& (Response::*field)() const) {
  return {called.status, (called.reply.*field)()};
}

}  // namespace

// How a caller's steps travel: in messages, through a ring, or in messages with their tensors in regions of shared
// memory. Rings and regions are opened at the first steps that need them.
class ServiceCaller::Transport {
 public:
  Transport() {
    const char* const named = std::getenv("GDN_TEST_TRANSPORT");
    if (named != nullptr) wanted_ = named;
  }

  // Returns the ring; null if none is wanted, the server has none to give, or it has ended.
  RingChannel* ring(const Caller& caller) {
    if (wanted_ != "ring") return nullptr;
    std::call_once(opened_, [&] {
      auto ring =
          RingChannel::Open(caller.server().stub(), caller.NewContext(), {.area_bytes = 4 << 20}, absl::Seconds(10));
      if (ring.ok()) ring_ = *std::move(ring);
    });
    return ring_ != nullptr && ring_->open() ? ring_.get() : nullptr;
  }

  // Returns a region that no other call uses; null if none is wanted or the server has none to give.
  std::shared_ptr<SharedMemory> Region(const Caller& caller) {
    if (wanted_ != "shared") return nullptr;
    std::unique_ptr<SharedMemory> region;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!regions_.empty()) {
        region = std::move(regions_.back());
        regions_.pop_back();
      }
    }
    if (region == nullptr || !region->status().ok()) {
      auto opened = SharedMemory::Open(caller.server().stub(), caller.NewContext(), 4 << 20, absl::Seconds(10));
      if (!opened.ok()) return nullptr;
      region = *std::move(opened);
    }
    return {region.release(), [this](SharedMemory* used) {
              used->Reset();
              std::lock_guard<std::mutex> lock(mutex_);
              regions_.emplace_back(used);
            }};
  }

 private:
  std::string wanted_;
  std::once_flag opened_;
  std::unique_ptr<RingChannel> ring_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<SharedMemory>> regions_;  // that no call uses
};

namespace {

// Moves a tensor's bytes to the region. False if it has too little room.
bool Share(SharedMemory& region, v1::Tensor& tensor) {
  if (tensor.data().empty()) return true;
  const auto range = region.Allocate(static_cast<int64_t>(tensor.data().size()));
  if (!range.ok()) return false;
  std::ranges::copy(tensor.data(), region.BytesOf(*range)->begin());
  *tensor.mutable_shared() = *range;
  tensor.clear_data();
  return true;
}

// Moves the request's tensors to the region, and asks for the output there. False if it has too little room.
template <typename Request>
bool ShareTensors(SharedMemory& region, Request& request) {
  std::vector<v1::Tensor*> tensors;
  if (request.has_hidden_states()) {
    tensors = {request.mutable_hidden_states()->mutable_hidden_states()};
  } else if (request.has_projected()) {
    v1::ProjectedInput& in = *request.mutable_projected();
    if (in.has_mixed_qkv()) tensors.push_back(in.mutable_mixed_qkv());
    if (in.has_z()) tensors.push_back(in.mutable_z());
    if (in.has_b()) tensors.push_back(in.mutable_b());
    if (in.has_a()) tensors.push_back(in.mutable_a());
  } else if (request.has_delta_rule()) {
    v1::DeltaRuleInput& in = *request.mutable_delta_rule();
    if (in.has_q()) tensors.push_back(in.mutable_q());
    if (in.has_k()) tensors.push_back(in.mutable_k());
    if (in.has_v()) tensors.push_back(in.mutable_v());
    if (in.has_g()) tensors.push_back(in.mutable_g());
    if (in.has_beta()) tensors.push_back(in.mutable_beta());
  }
  for (v1::Tensor* const tensor : tensors) {
    if (!Share(region, *tensor)) return false;
  }
  if (!request.has_hidden_states()) return true;
  // The output has as many elements as the hidden states, and their dtype unless the request says another.
  const v1::Tensor& in = request.hidden_states().hidden_states();
  const v1::DType dtype = request.output_dtype() != v1::DTYPE_UNSPECIFIED ? request.output_dtype() : in.dtype();
  int64_t bytes = static_cast<int64_t>(DTypeSize(static_cast<DType>(dtype)));
  for (const int64_t dim : in.shape()) bytes *= dim;
  const auto output = region.Allocate(bytes);
  if (output.ok() && bytes > 0) *request.mutable_output_shared() = *output;
  return true;
}
bool ShareTensors(SharedMemory& /*region*/, v1::AcceptTokensRequest& /*request*/) { return false; }

// Moves an output from the region to the reply.
template <typename Response>
void TakeOutput(SharedMemory& region, Response& reply) {
  if constexpr (requires { reply.mutable_output(); }) {
    if (!reply.has_output() || !reply.output().has_shared()) return;
    const auto bytes = region.BytesOf(reply.output().shared());
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    reply.mutable_output()->set_data(bytes->data(), bytes->size());
    reply.mutable_output()->clear_shared();
  }
}

}  // namespace

ServiceCaller::ServiceCaller(TestServer& server, std::string authorization)
    : server_(server), authorization_(std::move(authorization)), transport_(std::make_shared<Transport>()) {}

template <typename Request, typename Response>
Outcome<Response> ServiceCaller::Send(UnaryMethod<Request, Response> method, const Request& request) const {
  if (const std::shared_ptr<SharedMemory> region = transport_->Region(*this)) {
    Request shared = request;
    if (ShareTensors(*region, shared)) {
      Outcome<Response> outcome = Call(*this, method, shared);
      TakeOutput(*region, outcome.reply);
      return outcome;
    }
  }
  RingChannel* const ring = transport_->ring(*this);
  if (ring == nullptr || !ring->Takes(request)) return Call(*this, method, request);
  Outcome<Response> outcome;
  outcome.status = ToGrpcStatus(ring->Call(request, absl::InfiniteDuration(), outcome.reply));
  return outcome;
}

std::unique_ptr<grpc::ClientContext> ServiceCaller::NewContext() const {
  auto context = std::make_unique<grpc::ClientContext>();
  if (!authorization_.empty()) context->AddMetadata("authorization", authorization_);
  return context;
}

Outcome<v1::Session> ServiceCaller::Create(const v1::CreateSessionRequest& request) const {
  return FieldOf(Call(*this, &Stub::CreateSession, request), &v1::CreateSessionResponse::session);
}

Outcome<v1::Session> ServiceCaller::Create(const std::string& id, const std::string& model) const {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  request.set_model("models/" + model);
  return Create(request);
}

Outcome<v1::Session> ServiceCaller::CreateOperator(const std::string& id, const v1::OperatorSpec& spec) const {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  *request.mutable_operator_() = spec;
  return Create(request);
}

Outcome<v1::Session> ServiceCaller::Get(const std::string& id) const {
  return FieldOf(Call(*this, &Stub::GetSession, Naming<v1::GetSessionRequest>(id)), &v1::GetSessionResponse::session);
}

Outcome<v1::ListSessionsResponse> ServiceCaller::List(int page_size, const std::string& page_token) const {
  v1::ListSessionsRequest request;
  request.set_page_size(page_size);
  request.set_page_token(page_token);
  return Call(*this, &Stub::ListSessions, request);
}

Outcome<v1::ListSessionsResponse> ServiceCaller::ListAll(int page_size, const std::string& page_token) const {
  v1::ListSessionsRequest request;
  request.set_page_size(page_size);
  request.set_page_token(page_token);
  request.set_all(true);
  return Call(*this, &Stub::ListSessions, request);
}

Outcome<v1::DeleteSessionResponse> ServiceCaller::Delete(const std::string& id, const std::string& subject) const {
  auto request = Naming<v1::DeleteSessionRequest>(id);
  request.set_subject(subject);
  return Call(*this, &Stub::DeleteSession, request);
}

Outcome<v1::Session> ServiceCaller::Evict(const std::string& id, v1::StateTier tier, const std::string& subject) const {
  auto request = Naming<v1::EvictSessionRequest>(id);
  request.set_tier(tier);
  request.set_subject(subject);
  return FieldOf(Call(*this, &Stub::EvictSession, request), &v1::EvictSessionResponse::session);
}

Outcome<v1::GetMetricsResponse> ServiceCaller::Metrics() const {
  return Call(*this, &Stub::GetMetrics, v1::GetMetricsRequest());
}

Outcome<v1::DrainProgress> ServiceCaller::Drain(bool wait) const {
  v1::DrainRequest request;
  request.set_wait(wait);
  return FieldOf(Call(*this, &Stub::Drain, request), &v1::DrainResponse::progress);
}

Outcome<v1::GetServerInfoResponse> ServiceCaller::Info() const {
  return Call(*this, &Stub::GetServerInfo, v1::GetServerInfoRequest());
}

Outcome<v1::PrefillResponse> ServiceCaller::Prefill(grpc::ClientContext& context,
                                                    const v1::PrefillRequest& request) const {
  return Call(*this, &Stub::Prefill, request, context);
}

Outcome<v1::PrefillResponse> ServiceCaller::Prefill(const v1::PrefillRequest& request) const {
  return Send(&Stub::Prefill, request);
}

Outcome<v1::DecodeResponse> ServiceCaller::Decode(grpc::ClientContext& context,
                                                  const v1::DecodeRequest& request) const {
  return Call(*this, &Stub::Decode, request, context);
}

Outcome<v1::DecodeResponse> ServiceCaller::Decode(const v1::DecodeRequest& request) const {
  return Send(&Stub::Decode, request);
}

Outcome<v1::StepResponse> ServiceCaller::Step(grpc::ClientContext& context, const v1::StepRequest& request) const {
  return Call(*this, &Stub::Step, request, context);
}

Outcome<v1::StepResponse> ServiceCaller::Step(const v1::StepRequest& request) const {
  return Send(&Stub::Step, request);
}

Outcome<std::string> ServiceCaller::Export(const v1::ExportStateRequest& request) const {
  Outcome<std::string> outcome;
  const auto context = NewContext();
  const auto reader = server_.stub().ExportState(context.get(), request);
  v1::ExportStateResponse piece;
  while (reader->Read(&piece)) outcome.reply += piece.data();
  outcome.status = reader->Finish();
  return outcome;
}

Outcome<std::string> ServiceCaller::Export(const std::string& id, bool include_recurrent_state) const {
  auto request = Naming<v1::ExportStateRequest>(id);
  request.set_include_recurrent_state(include_recurrent_state);
  return Export(request);
}

Outcome<v1::Session> ServiceCaller::Import(const std::vector<v1::ImportStateRequest>& messages, bool end) const {
  Outcome<v1::Session> outcome;
  const auto context = NewContext();
  v1::ImportStateResponse response;
  const auto writer = server_.stub().ImportState(context.get(), &response);
  for (const auto& message : messages) {
    if (!writer->Write(message)) break;
  }
  if (end) writer->WritesDone();
  outcome.status = writer->Finish();
  outcome.reply = response.session();
  return outcome;
}

Outcome<v1::Session> ServiceCaller::Import(const v1::ImportStateRequest::Target& target,
                                           const std::string& file) const {
  constexpr size_t kPieceBytes = 1000;
  std::vector<v1::ImportStateRequest> messages(1);
  *messages[0].mutable_target() = target;
  for (size_t sent = 0; sent < file.size(); sent += kPieceBytes) {
    messages.emplace_back().set_data(file.substr(sent, kPieceBytes));
  }
  return Import(messages);
}

Outcome<v1::Session> ServiceCaller::Import(const std::string& id, const std::string& model,
                                           const std::string& file) const {
  v1::ImportStateRequest::Target target;
  target.set_session_id(id);
  target.set_model("models/" + model);
  return Import(target, file);
}

int64_t ServiceCaller::TokenCount(const std::string& id, int layer) const {
  const v1::Session session = Get(id).reply;
  for (const v1::LayerState& state : session.layers()) {
    if (state.layer() == layer) return state.token_count();
  }
  return -1;
}

Outcome<v1::ForkSessionResponse> ServiceCaller::Fork(const v1::ForkSessionRequest& request) const {
  return Call(*this, &Stub::ForkSession, request);
}

Outcome<v1::ForkSessionResponse> ServiceCaller::Fork(const std::string& id,
                                                     const std::vector<std::string>& children) const {
  return Fork(ForkOf(id, children));
}

Outcome<v1::AcceptTokensResponse> ServiceCaller::Accept(const v1::AcceptTokensRequest& request) const {
  return Send(&Stub::AcceptTokens, request);
}

Outcome<v1::AcceptTokensResponse> ServiceCaller::Accept(const std::string& id, int32_t accepted) const {
  return Accept(AcceptOf({id}, {accepted}));
}

Outcome<v1::Checkpoint> ServiceCaller::Checkpoint(const std::string& id, const std::string& checkpoint_id) const {
  auto request = Naming<v1::CheckpointSessionRequest>(id);
  request.set_checkpoint_id(checkpoint_id);
  return FieldOf(Call(*this, &Stub::CheckpointSession, request), &v1::CheckpointSessionResponse::checkpoint);
}

Outcome<v1::ListCheckpointsResponse> ServiceCaller::Checkpoints(const std::string& id) const {
  return Call(*this, &Stub::ListCheckpoints, Naming<v1::ListCheckpointsRequest>(id));
}

Outcome<v1::DeleteCheckpointResponse> ServiceCaller::DeleteCheckpoint(const std::string& id,
                                                                      const std::string& checkpoint_id) const {
  auto request = Naming<v1::DeleteCheckpointRequest>(id);
  request.set_checkpoint_id(checkpoint_id);
  return Call(*this, &Stub::DeleteCheckpoint, request);
}

Outcome<v1::Session> ServiceCaller::Restore(const std::string& id, const std::string& checkpoint_id) const {
  auto request = Naming<v1::RestoreCheckpointRequest>(id);
  request.set_checkpoint_id(checkpoint_id);
  return FieldOf(Call(*this, &Stub::RestoreCheckpoint, request), &v1::RestoreCheckpointResponse::session);
}

Outcome<v1::PrefetchSessionsResponse> ServiceCaller::Prefetch(const std::vector<std::string>& ids) const {
  v1::PrefetchSessionsRequest request;
  for (const std::string& id : ids) request.add_names("sessions/" + id);
  return Call(*this, &Stub::PrefetchSessions, request);
}

std::string ServiceCaller::State(const std::string& id) const {
  const Outcome<std::string> exported = SentAgain([&] { return Export(id); });
  const Outcome<v1::Session> session = SentAgain([&] { return Get(id); });
  EXPECT_TRUE(exported.ok()) << exported.status.error_message();
  EXPECT_TRUE(session.ok()) << session.status.error_message();
  if (!exported.ok() || !session.ok()) return "";
  std::string state;
  for (const v1::LayerState& layer : session.reply.layers()) {
    absl::StrAppend(&state, "layer.", layer.layer(), " tokens=", layer.token_count(), " log=", layer.log_length(),
                    " draft=", layer.draft_length(), " kind=", static_cast<int>(layer.input_kind()), "\n");
  }
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(exported.reply);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return "";
  for (const auto& [name, entry] : file->entries()) {
    if (absl::EndsWith(name, ".reply")) continue;
    absl::StrAppend(&state, name, " [", absl::StrJoin(entry.shape, ","), "] ",
                    HashBytes(file->Bytes(name).value()).ToHex(), "\n");
  }
  return state;
}

}  // namespace gdn
