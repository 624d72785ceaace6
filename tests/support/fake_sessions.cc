// The sessions of FakeGdnService.
#include "tests/support/fake_gdn_service.h"

#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/string_cat.h"
#include "client/cpp/tensor_codec.h"
#include "tests/support/server_error.h"

namespace gdn {
namespace {

grpc::Status NoSession() {
  return ServerError(grpc::StatusCode::NOT_FOUND, reason::kSessionNotFound, "no such session");
}
grpc::Status ConnectionBroken() { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the connection broke"); }

}  // namespace

void FakeGdnService::Plan(int call, Fault fault) {
  absl::MutexLock lock(&mu_);
  plan_[log_.steps + call] = fault;
}

void FakeGdnService::PlanNext(const std::string& call, std::vector<Fault> faults) {
  absl::MutexLock lock(&mu_);
  next_faults_[call] = std::move(faults);
}

void FakeGdnService::Crash() {
  absl::MutexLock lock(&mu_);
  CrashLocked();
}

void FakeGdnService::SetNumerics(const std::string& numerics_id) {
  absl::MutexLock lock(&mu_);
  numerics_id_ = numerics_id;
}

void FakeGdnService::MoveLayer(const std::string& session, int32_t layer, int64_t tokens) {
  absl::MutexLock lock(&mu_);
  sessions_.at(session).now.layers.at(layer).toy.token_count += tokens;
}

std::string FakeGdnService::States(const std::string& session) const {
  absl::MutexLock lock(&mu_);
  std::string text;
  for (const auto& [index, layer] : sessions_.at(session).now.layers) StrAppend(&text, index, ": ", layer.toy.Text());
  return text;
}

std::set<std::string> FakeGdnService::session_names() const {
  absl::MutexLock lock(&mu_);
  std::set<std::string> names;
  for (const auto& [name, session] : sessions_) names.insert(name);
  return names;
}

int64_t FakeGdnService::token_count(const std::string& session, int32_t layer) const {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? -1 : found->second.now.layers.at(layer).toy.token_count;
}

FakeGdnService::Log FakeGdnService::log() const {
  absl::MutexLock lock(&mu_);
  return log_;
}

std::string FakeGdnService::numerics_id() const {
  absl::MutexLock lock(&mu_);
  return numerics_id_;
}

std::optional<ToyStates> FakeGdnService::StatesOf(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto session = sessions_.find(name);
  if (session == sessions_.end()) return std::nullopt;
  ToyStates states;
  for (const auto& [index, layer] : session->second.now.layers) states[index] = layer.toy;
  return states;
}

grpc::Status FakeGdnService::AddSession(const std::string& name, const ToyStates& states, v1::Session* out) {
  absl::MutexLock lock(&mu_);
  const auto [entry, made] = sessions_.emplace(name, Session());
  if (!made) return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "taken");
  for (const auto& [index, toy] : states) entry->second.now.layers[index].toy = toy;
  Describe(name, entry->second, out);
  return grpc::Status::OK;
}

std::optional<Fault> FakeGdnService::TakeFault() {
  const auto planned = plan_.extract(log_.steps++);
  return planned.empty() ? std::nullopt : std::optional(planned.mapped());
}

std::optional<Fault> FakeGdnService::TakeNext(const std::string& call) {
  std::vector<Fault>& faults = next_faults_[call];
  if (faults.empty()) return std::nullopt;
  const Fault fault = faults.front();
  faults.erase(faults.begin());
  return fault;
}

std::optional<grpc::Status> FakeGdnService::FailBefore(std::optional<Fault> fault, std::string_view refusal) {
  if (fault == Fault::kUnavailable) return ConnectionBroken();
  if (fault == Fault::kRefuse) return ServerError(grpc::StatusCode::INVALID_ARGUMENT, refusal, "refused");
  if (fault != Fault::kCrashBefore) return std::nullopt;
  CrashLocked();
  return ConnectionBroken();
}

grpc::Status FakeGdnService::FailAfter(std::optional<Fault> fault) {
  if (!fault.has_value() || fault == Fault::kOtherBytes) return grpc::Status::OK;
  if (fault == Fault::kCrashAfter) CrashLocked();
  return fault == Fault::kLate ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "late") : ConnectionBroken();
}

void FakeGdnService::CrashLocked() {
  std::erase_if(sessions_, [](const auto& session) { return session.second.checkpoints.count("") == 0; });
  for (auto& [name, session] : sessions_) {
    session.now = session.checkpoints.at("");
    ++session.epoch;
  }
}

void FakeGdnService::SaveIfDue(Session& session) {
  if (options_.checkpoint_every_tokens == 0) return;
  for (const auto& [index, layer] : session.now.layers) {
    const v1::LayerState state = Describe(session, index, layer);
    if (state.token_count() - state.durable_token_count() >= options_.checkpoint_every_tokens) {
      session.checkpoints[""] = session.now;
      return;
    }
  }
}

FakeGdnService::Session* FakeGdnService::FindSession(const std::string& name) {
  const auto found = sessions_.find(name);
  return found == sessions_.end() ? nullptr : &found->second;
}

FakeGdnService::Layer* FakeGdnService::FindLayer(const std::string& session, int32_t layer) {
  Session* const owner = FindSession(session);
  if (owner == nullptr) return nullptr;
  const auto found = owner->now.layers.find(layer);
  return found == owner->now.layers.end() ? nullptr : &found->second;
}

v1::LayerState FakeGdnService::Describe(const Session& session, int32_t index, const Layer& layer) {
  v1::LayerState state;
  state.set_layer(index);
  state.set_token_count(layer.toy.token_count);
  state.set_draft_length(layer.toy.draft_length());
  const auto newest = session.checkpoints.find("");
  if (newest != session.checkpoints.end()) {
    state.set_durable_token_count(newest->second.layers.at(index).toy.token_count);
  }
  return state;
}

void FakeGdnService::Describe(const std::string& name, const Session& session, v1::Session* out) {
  out->set_name(name);
  out->set_model(kToyModel);
  out->set_epoch(session.epoch);
  out->set_tier(v1::STATE_TIER_HOST);
  if (!session.checkpoints.empty()) out->mutable_durable_time()->set_seconds(1'700'000'000);
  for (const auto& [index, layer] : session.now.layers) *out->add_layers() = Describe(session, index, layer);
}

grpc::Status FakeGdnService::CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest* request,
                                           v1::CreateSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = TakeNext("CreateSession");
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  if (request->model() != kToyModel) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such model");
  const std::string name = "sessions/" + request->session_id();
  const auto [entry, made] = sessions_.emplace(name, Session());
  Session& session = entry->second;
  if (made) {
    ++log_.sessions_created;
    session.create = request->SerializeAsString();
    for (int32_t layer = 0; layer < options_.layers; ++layer) session.now.layers[layer];
    if (options_.layers == 0) session.now.layers = {{kToyLayers[0], {}}, {kToyLayers[1], {}}};
    for (const auto& state : request->initial_states()) {
      session.now.layers.at(state.layer()).toy.token_count = state.token_count();
    }
  } else if (session.create != request->SerializeAsString()) {
    return ServerError(grpc::StatusCode::ALREADY_EXISTS, reason::kSessionExists, "made by another request");
  }
  Describe(name, session, response->mutable_session());
  return FailAfter(fault);
}

grpc::Status FakeGdnService::GetSession(grpc::ServerContext*, const v1::GetSessionRequest* request,
                                        v1::GetSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  if (const auto failed = FailBefore(TakeNext("GetSession"), reason::kInvalidSpec)) return *failed;
  const Session* const session = FindSession(request->name());
  if (session == nullptr) return NoSession();
  Describe(request->name(), *session, response->mutable_session());
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest* request,
                                           v1::DeleteSessionResponse*) {
  absl::MutexLock lock(&mu_);
  return sessions_.erase(request->name()) != 0 ? grpc::Status::OK : NoSession();
}

grpc::Status FakeGdnService::Check(const Step& step, const Row& row) {
  const Session* const session = FindSession(row.session);
  if (session == nullptr) return NoSession();
  const Layer* const layer = FindLayer(row.session, step.layer);
  if (layer == nullptr) return ServerError(grpc::StatusCode::INVALID_ARGUMENT, reason::kLayerNotGdn, "no such layer");
  if (row.expected >= 0) log_.checked_calls.insert(step.call);
  if ((options_.traces || row.epoch != 0) && row.epoch != session->epoch) {
    return ServerError(grpc::StatusCode::ABORTED, reason::kEpochMismatch, "another epoch");
  }
  if ((options_.traces || row.expected >= 0) && row.expected != layer->toy.token_count) {
    return ServerError(grpc::StatusCode::ABORTED, reason::kTokenCountMismatch, "another token count");
  }
  if (layer->toy.draft.empty()) return grpc::Status::OK;
  return ServerError(grpc::StatusCode::FAILED_PRECONDITION, reason::kDraftPending, "a draft");
}

template <typename Reply>
grpc::Status FakeGdnService::Apply(const Step& step, Reply* reply) {
  const auto input = TensorToFloats(*step.input);
  const std::vector<int64_t> shape(step.input->shape().begin(), step.input->shape().end());
  const size_t rows = step.rows.size();
  if (!input.ok() || shape.empty() || shape.back() != kToyHidden ||
      (!step.prefill && shape[0] != static_cast<int64_t>(rows))) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the input has another shape");
  }
  const std::string payload = StrCat(step.layer, step.prefill, step.draft, step.input->data());
  if (!step.request_id.empty()) {
    if (static_cast<int64_t>(input->size() * sizeof(float)) > kMaxStoredReplyBytes) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the reply is too large to store");
    }
    log_.identified_calls.insert(step.call);
    const Layer* const layer = FindLayer(step.rows[0].session, step.layer);
    if (layer != nullptr && layer->reply_id == step.request_id) {
      if (payload != layer->reply_payload) {
        return ServerError(grpc::StatusCode::INVALID_ARGUMENT, reason::kRequestIdReused, "id");
      }
      reply->ParseFromString(layer->reply);
      return grpc::Status::OK;
    }
  }
  const size_t tokens = input->size() / rows / kToyHidden;
  std::vector<float> output;
  for (size_t row = 0; row < rows; ++row) {
    if (grpc::Status status = Check(step, step.rows[row]); !status.ok()) return status;
    Layer& layer = *FindLayer(step.rows[row].session, step.layer);
    const float* const x = input->data() + row * tokens * kToyHidden;
    ToyState moved = layer.toy;
    moved.Advance(step.layer, x, tokens, options_.traces, output);
    if (step.draft) {
      layer.toy.draft.assign(x, x + tokens * kToyHidden);
    } else {
      if (step.prefill) moved.EndPrefill(tokens);
      layer.toy = std::move(moved);
    }
    // As a real reply: durable counts are those of before this step's own checkpoint.
    const v1::LayerState state = Describe(sessions_.at(step.rows[row].session), step.layer, layer);
    const int64_t count = state.token_count() + (options_.wrong_token_count ? 1 : 0);
    if constexpr (std::is_same_v<Reply, v1::PrefillResponse>) {
      reply->set_token_count(count);
      reply->set_durable_token_count(state.durable_token_count());
    } else {
      reply->add_token_counts(count);
      reply->add_durable_token_counts(state.durable_token_count());
    }
  }
  if (step.call == options_.faulty_call) {
    for (float& y : output) y += options_.output_error;
  }
  *reply->mutable_output() = *MakeTensor(output, shape);
  for (const Row& row : step.rows) {
    Layer& layer = *FindLayer(row.session, step.layer);
    layer.reply_id = options_.forget_stored_replies ? "" : step.request_id;
    layer.reply_payload = payload;
    layer.reply = reply->SerializeAsString();
    SaveIfDue(sessions_.at(row.session));
  }
  return grpc::Status::OK;
}

template <typename Reply>
grpc::Status FakeGdnService::RunStep(const Step& step, Reply* reply) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = TakeFault();
  if (const auto failed = FailBefore(fault, reason::kNonFiniteInput)) return *failed;
  if (grpc::Status status = Apply(step, reply); !status.ok()) return status;
  if (fault == Fault::kOtherBytes) reply->mutable_output()->mutable_data()->front() ^= 1;
  return FailAfter(fault);
}
template grpc::Status FakeGdnService::RunStep(const Step&, v1::PrefillResponse*);
template grpc::Status FakeGdnService::RunStep(const Step&, v1::DecodeResponse*);

grpc::Status FakeGdnService::Accept(const v1::AcceptTokensRequest& request, v1::AcceptTokensResponse* response) {
  const v1::DraftAcceptance& acceptance = request.acceptances(0);
  Session* const session = FindSession(acceptance.session());
  if (session == nullptr) return NoSession();
  State& state = session->now;
  if (request.request_id().empty() || request.request_id() != state.accept_id) {
    if (acceptance.session_epoch() != session->epoch) {
      return ServerError(grpc::StatusCode::ABORTED, reason::kEpochMismatch, "another epoch");
    }
    const auto accepted = static_cast<size_t>(acceptance.accepted_tokens());
    for (const auto& [index, layer] : state.layers) {
      if (!layer.toy.draft.empty() && acceptance.accepted_tokens() > layer.toy.draft_length()) {
        return ServerError(grpc::StatusCode::INVALID_ARGUMENT, reason::kTooManyTokens, "longer than the draft");
      }
    }
    for (auto& [index, layer] : state.layers) {
      if (layer.toy.draft.empty()) continue;
      std::vector<float> ignored;
      layer.toy.Advance(index, layer.toy.draft.data(), accepted, options_.traces, ignored);
      layer.toy.draft.clear();
    }
    state.accept_id = options_.forget_stored_replies ? "" : request.request_id();
    SaveIfDue(*session);
  }
  v1::SessionTokenCounts* const counts = response->add_counts();
  counts->set_session(acceptance.session());
  for (const auto& [index, layer] : state.layers) *counts->add_layers() = Describe(*session, index, layer);
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::AcceptTokens(grpc::ServerContext*, const v1::AcceptTokensRequest* request,
                                          v1::AcceptTokensResponse* response) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = TakeFault();
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  grpc::Status status = Accept(*request, response);
  return status.ok() ? FailAfter(fault) : status;
}

grpc::Status FakeGdnService::CheckpointSession(grpc::ServerContext*, const v1::CheckpointSessionRequest* request,
                                               v1::CheckpointSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = TakeNext("CheckpointSession");
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  if (!options_.durable_tier) {
    return ServerError(grpc::StatusCode::FAILED_PRECONDITION, reason::kNoDurableTier, "no --disk-dir");
  }
  Session* const session = FindSession(request->name());
  if (session == nullptr) return NoSession();
  session->checkpoints[request->checkpoint_id()] = session->now;
  v1::Checkpoint* const checkpoint = response->mutable_checkpoint();
  checkpoint->set_checkpoint_id(request->checkpoint_id());
  checkpoint->set_epoch(session->epoch);
  for (const auto& [index, layer] : session->now.layers) *checkpoint->add_layers() = Describe(*session, index, layer);
  return FailAfter(fault);
}

grpc::Status FakeGdnService::RestoreCheckpoint(grpc::ServerContext*, const v1::RestoreCheckpointRequest* request,
                                               v1::RestoreCheckpointResponse* response) {
  absl::MutexLock lock(&mu_);
  Session* const session = FindSession(request->name());
  if (session == nullptr) return NoSession();
  const auto checkpoint = session->checkpoints.find(request->checkpoint_id());
  if (checkpoint == session->checkpoints.end()) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such checkpoint");
  }
  session->now = checkpoint->second;
  ++session->epoch;
  Describe(request->name(), *session, response->mutable_session());
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::ForkSession(grpc::ServerContext*, const v1::ForkSessionRequest* request,
                                         v1::ForkSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const Session* const parent = FindSession(request->name());
  if (parent == nullptr) return NoSession();
  for (const std::string& id : request->session_ids()) {
    const std::string name = "sessions/" + (id.empty() ? "made-by-the-server" : id);
    sessions_[name].now = parent->now;
    Describe(name, sessions_[name], response->add_sessions());
  }
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::PrefetchSessions(grpc::ServerContext*, const v1::PrefetchSessionsRequest* request,
                                              v1::PrefetchSessionsResponse* response) {
  absl::MutexLock lock(&mu_);
  log_.prefetched.assign(request->names().begin(), request->names().end());
  response->set_started(request->names_size());
  return grpc::Status::OK;
}

}  // namespace gdn
