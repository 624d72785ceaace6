#include "tests/client/cpp/crashing_service.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/string_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/server_builder.h"

namespace gdn {
namespace {

grpc::Status Error(grpc::StatusCode code, std::string_view reason, const std::string& message) {
  google::rpc::Status details;
  details.set_code(code);
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("gdn.v1");
  details.add_details()->PackFrom(info);
  return grpc::Status(code, message, details.SerializeAsString());
}

grpc::Status NoSession() { return Error(grpc::StatusCode::NOT_FOUND, reason::kSessionNotFound, "no such session"); }
grpc::Status ConnectionBroken() { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the connection broke"); }

uint64_t Mix(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15u;
  return state ^ (state >> 29);
}

std::vector<uint64_t> TokensOf(const v1::Tensor& tensor) {
  std::vector<uint64_t> tokens(tensor.data().size() / sizeof(uint64_t));
  std::memcpy(tokens.data(), tensor.data().data(), tokens.size() * sizeof(uint64_t));
  return tokens;
}

void SetCounts(int64_t token_count, int64_t durable, v1::PrefillResponse* reply) {
  reply->set_token_count(token_count);
  reply->set_durable_token_count(durable);
}
void SetCounts(int64_t token_count, int64_t durable, v1::DecodeResponse* reply) {
  reply->add_token_counts(token_count);
  reply->add_durable_token_counts(durable);
}

}  // namespace

CrashingService::CrashingService(Options options) : options_(options) {
  grpc::ServerBuilder builder;
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

CrashingService::~CrashingService() { server_->Shutdown(); }

std::unique_ptr<Client> CrashingService::Connect() { return std::make_unique<Client>(server_->InProcessChannel({})); }

void CrashingService::Plan(int call, Fault fault) {
  absl::MutexLock lock(&mu_);
  plan_[calls_ + call] = fault;
}

void CrashingService::PlanCreate(Fault fault) {
  absl::MutexLock lock(&mu_);
  create_fault_ = fault;
}

void CrashingService::PlanGet(std::vector<Fault> faults) {
  absl::MutexLock lock(&mu_);
  get_faults_ = std::move(faults);
}

void CrashingService::PlanCheckpoint(Fault fault) {
  absl::MutexLock lock(&mu_);
  checkpoint_fault_ = fault;
}

void CrashingService::Crash() {
  absl::MutexLock lock(&mu_);
  CrashLocked();
}

void CrashingService::SetNumerics(const std::string& numerics_id) {
  absl::MutexLock lock(&mu_);
  numerics_id_ = numerics_id;
}

void CrashingService::MoveLayer(const std::string& session, int32_t layer, int64_t tokens) {
  absl::MutexLock lock(&mu_);
  sessions_.at(session).now.layers.at(layer).token_count += tokens;
}

int CrashingService::calls() const {
  absl::MutexLock lock(&mu_);
  return calls_;
}

std::string CrashingService::States(const std::string& session) const {
  absl::MutexLock lock(&mu_);
  std::string text;
  for (const auto& [index, layer] : sessions_.at(session).now.layers) {
    StrAppend(&text, index, ": ", layer.state, " after ", layer.token_count, ", draft");
    for (const uint64_t token : layer.draft) StrAppend(&text, " ", token);
    StrAppend(&text, "\n");
  }
  return text;
}

std::optional<Fault> CrashingService::TakeFault() {
  const auto planned = plan_.find(calls_++);
  if (planned == plan_.end()) return std::nullopt;
  const Fault fault = planned->second;
  plan_.erase(planned);
  return fault;
}

std::optional<grpc::Status> CrashingService::FailBefore(std::optional<Fault> fault, std::string_view refusal) {
  if (fault == Fault::kUnavailable) return ConnectionBroken();
  if (fault == Fault::kRefuse) return Error(grpc::StatusCode::INVALID_ARGUMENT, refusal, "refused");
  if (fault != Fault::kCrashBefore) return std::nullopt;
  CrashLocked();
  return ConnectionBroken();
}

grpc::Status CrashingService::FailAfter(Fault fault) {
  if (fault == Fault::kCrashAfter) CrashLocked();
  return fault == Fault::kLate ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "late") : ConnectionBroken();
}

void CrashingService::CrashLocked() {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    Session& session = it->second;
    if (session.durable.has_value()) {
      session.now = *session.durable;
      ++session.epoch;
      ++it;
    } else {
      it = sessions_.erase(it);
    }
  }
}

void CrashingService::SaveIfDue(Session& session) {
  if (options_.checkpoint_every_tokens == 0) return;
  for (const auto& [index, layer] : session.now.layers) {
    const int64_t saved = session.durable.has_value() ? session.durable->layers.at(index).token_count : 0;
    if (layer.token_count - saved >= options_.checkpoint_every_tokens) {
      session.durable = session.now;
      return;
    }
  }
}

v1::LayerState CrashingService::Describe(const Session& session, int32_t index, const Layer& layer) {
  v1::LayerState state;
  state.set_layer(index);
  state.set_token_count(layer.token_count);
  state.set_draft_length(static_cast<int32_t>(layer.draft.size()));
  if (session.durable.has_value()) state.set_durable_token_count(session.durable->layers.at(index).token_count);
  return state;
}

void CrashingService::Fill(const std::string& name, const Session& session, v1::Session* out) const {
  out->set_name(name);
  out->set_epoch(session.epoch);
  for (const auto& [index, layer] : session.now.layers) *out->add_layers() = Describe(session, index, layer);
}

grpc::Status CrashingService::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                            v1::GetServerInfoResponse* response) {
  absl::MutexLock lock(&mu_);
  response->set_numerics_id(numerics_id_);
  return grpc::Status::OK;
}

grpc::Status CrashingService::CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest* request,
                                            v1::CreateSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = std::exchange(create_fault_, std::nullopt);
  if (fault == Fault::kUnavailable) return ConnectionBroken();
  const std::string name = "sessions/" + request->session_id();
  const auto [entry, made] = sessions_.emplace(name, Session());
  Session& session = entry->second;
  if (made) {
    session.create = request->SerializeAsString();
    for (int32_t layer = 0; layer < options_.layers; ++layer) session.now.layers[layer].state = 17;
    for (const auto& state : request->initial_states()) {
      session.now.layers.at(state.layer()).token_count = state.token_count();
    }
  } else if (session.create != request->SerializeAsString()) {
    return Error(grpc::StatusCode::ALREADY_EXISTS, reason::kSessionExists, "made by another request");
  }
  Fill(name, session, response->mutable_session());
  return fault == Fault::kLoseReply ? ConnectionBroken() : grpc::Status::OK;
}

grpc::Status CrashingService::GetSession(grpc::ServerContext*, const v1::GetSessionRequest* request,
                                         v1::GetSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  if (!get_faults_.empty()) {
    const Fault fault = get_faults_.front();
    get_faults_.erase(get_faults_.begin());
    if (fault == Fault::kCrashBefore) CrashLocked();
    return ConnectionBroken();
  }
  const auto found = sessions_.find(request->name());
  if (found == sessions_.end()) return NoSession();
  Fill(request->name(), found->second, response->mutable_session());
  return grpc::Status::OK;
}

grpc::Status CrashingService::DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest* request,
                                            v1::DeleteSessionResponse*) {
  absl::MutexLock lock(&mu_);
  return sessions_.erase(request->name()) != 0 ? grpc::Status::OK : NoSession();
}

template <typename Reply>
grpc::Status CrashingService::Apply(const Step& step, Reply* reply) {
  const auto found = sessions_.find(step.session);
  if (found == sessions_.end()) return NoSession();
  Session& session = found->second;
  Layer& layer = session.now.layers.at(step.layer);
  const std::string payload = StrCat(step.layer, step.prefill, step.draft, step.input->data());
  if (!step.request_id.empty() && step.request_id == layer.reply_id) {
    if (payload != layer.reply_payload)
      return Error(grpc::StatusCode::INVALID_ARGUMENT, reason::kRequestIdReused, "id");
    reply->ParseFromString(layer.reply);
    return grpc::Status::OK;
  }
  if (step.epoch != session.epoch) return Error(grpc::StatusCode::ABORTED, reason::kEpochMismatch, "another epoch");
  if (step.expected != layer.token_count) {
    return Error(grpc::StatusCode::ABORTED, reason::kTokenCountMismatch, "another token count");
  }
  if (!layer.draft.empty()) return Error(grpc::StatusCode::FAILED_PRECONDITION, reason::kDraftPending, "a draft");
  const std::vector<uint64_t> tokens = TokensOf(*step.input);
  std::vector<uint64_t> output;
  output.reserve(tokens.size());
  uint64_t state = layer.state;
  for (const uint64_t token : tokens) output.push_back(state = Mix(state, token));
  if (step.draft) {
    layer.draft = tokens;
  } else {
    if (step.prefill && !tokens.empty()) state = Mix(state, tokens.size());
    layer.state = state;
    layer.token_count += static_cast<int64_t>(tokens.size());
  }
  v1::Tensor* const tensor = reply->mutable_output();
  *tensor->mutable_shape() = step.input->shape();
  tensor->set_dtype(v1::DTYPE_F32);
  tensor->set_data(output.data(), output.size() * sizeof(uint64_t));
  layer.reply_id = options_.forget_stored_replies ? "" : step.request_id;
  layer.reply_payload = payload;
  // As a real reply: durable counts are those of before this step's own checkpoint.
  SetCounts(layer.token_count, Describe(session, step.layer, layer).durable_token_count(), reply);
  layer.reply = reply->SerializeAsString();
  SaveIfDue(session);
  return grpc::Status::OK;
}

template <typename Reply>
grpc::Status CrashingService::RunStep(const Step& step, Reply* reply) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = TakeFault();
  if (const auto failed = FailBefore(fault, reason::kNonFiniteInput)) return *failed;
  grpc::Status status = Apply(step, reply);
  if (!status.ok() || !fault.has_value()) return status;
  if (fault == Fault::kOtherBytes) {
    reply->mutable_output()->mutable_data()->front() ^= 1;
    return status;
  }
  return FailAfter(*fault);
}

grpc::Status CrashingService::Prefill(grpc::ServerContext*, const v1::PrefillRequest* request,
                                      v1::PrefillResponse* response) {
  return RunStep({.session = request->session(),
                  .layer = request->layer(),
                  .epoch = request->session_epoch(),
                  .expected = request->expected_token_count(),
                  .request_id = request->request_id(),
                  .input = &request->hidden_states().hidden_states(),
                  .prefill = true},
                 response);
}

grpc::Status CrashingService::Decode(grpc::ServerContext*, const v1::DecodeRequest* request,
                                     v1::DecodeResponse* response) {
  return RunStep({.session = request->sessions(0),
                  .layer = request->layer(),
                  .epoch = request->session_epochs(0),
                  .expected = request->expected_token_counts(0),
                  .request_id = request->request_id(),
                  .input = &request->hidden_states().hidden_states(),
                  .draft = request->draft()},
                 response);
}

grpc::Status CrashingService::Accept(const v1::AcceptTokensRequest& request, v1::AcceptTokensResponse* response) {
  const v1::DraftAcceptance& acceptance = request.acceptances(0);
  const auto found = sessions_.find(acceptance.session());
  if (found == sessions_.end()) return NoSession();
  Session& session = found->second;
  State& state = session.now;
  if (request.request_id().empty() || request.request_id() != state.accept_id) {
    if (acceptance.session_epoch() != session.epoch) {
      return Error(grpc::StatusCode::ABORTED, reason::kEpochMismatch, "another epoch");
    }
    const auto accepted = static_cast<size_t>(acceptance.accepted_tokens());
    for (const auto& [index, layer] : state.layers) {
      if (!layer.draft.empty() && accepted > layer.draft.size()) {
        return Error(grpc::StatusCode::INVALID_ARGUMENT, reason::kTooManyTokens, "longer than the draft");
      }
    }
    for (auto& [index, layer] : state.layers) {
      if (layer.draft.empty()) continue;
      for (size_t i = 0; i < accepted; ++i) layer.state = Mix(layer.state, layer.draft[i]);
      layer.token_count += acceptance.accepted_tokens();
      layer.draft.clear();
    }
    state.accept_id = options_.forget_stored_replies ? "" : request.request_id();
    SaveIfDue(session);
  }
  v1::SessionTokenCounts* const counts = response->add_counts();
  counts->set_session(acceptance.session());
  for (const auto& [index, layer] : state.layers) *counts->add_layers() = Describe(session, index, layer);
  return grpc::Status::OK;
}

grpc::Status CrashingService::AcceptTokens(grpc::ServerContext*, const v1::AcceptTokensRequest* request,
                                           v1::AcceptTokensResponse* response) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = TakeFault();
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  grpc::Status status = Accept(*request, response);
  if (!status.ok() || !fault.has_value() || fault == Fault::kOtherBytes) return status;
  return FailAfter(*fault);
}

grpc::Status CrashingService::CheckpointSession(grpc::ServerContext*, const v1::CheckpointSessionRequest* request,
                                                v1::CheckpointSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = std::exchange(checkpoint_fault_, std::nullopt);
  if (fault == Fault::kCrashBefore) {
    CrashLocked();
    return ConnectionBroken();
  }
  if (!options_.durable_tier) {
    return Error(grpc::StatusCode::FAILED_PRECONDITION, reason::kNoDurableTier, "no --disk-dir");
  }
  const auto found = sessions_.find(request->name());
  if (found == sessions_.end()) return NoSession();
  Session& session = found->second;
  session.durable = session.now;
  v1::Checkpoint* const checkpoint = response->mutable_checkpoint();
  checkpoint->set_checkpoint_id(request->checkpoint_id());
  checkpoint->set_epoch(session.epoch);
  for (const auto& [index, layer] : session.now.layers) *checkpoint->add_layers() = Describe(session, index, layer);
  return grpc::Status::OK;
}

}  // namespace gdn
