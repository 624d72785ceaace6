// The sessions of FakeGdnService.
#include "client/cpp/testing/fake_gdn_service.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/string_cat.h"
#include "client/cpp/testing/server_error.h"

namespace gdn {
namespace {

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

void FakeGdnService::SetStoreBack(const std::string& session, const std::string& checkpoint_id) {
  absl::MutexLock lock(&mu_);
  sessions_.at(session).SetStoreBack(checkpoint_id);
}

void FakeGdnService::LoseState(const std::string& session) {
  absl::MutexLock lock(&mu_);
  sessions_.at(session).LoseState();
}

void FakeGdnService::Session::Restore(const State& checkpoint) {
  now = checkpoint;
  rolled_back = lost = false;
  ++epoch;
}

std::optional<grpc::Status> FakeGdnService::Session::Refusal() const {
  if (!rolled_back) return std::nullopt;
  if (lost && !checkpoints.contains("")) {
    return ServerError(grpc::StatusCode::DATA_LOSS, reason::kStateLost, "a step failed halfway");
  }
  return ServerError(grpc::StatusCode::DATA_LOSS, reason::kStateRolledBack, "an older state is left, or none");
}

template <typename Request>
FakeGdnService::Session* FakeGdnService::FindUsable(const Request& request, grpc::Status* refusal) {
  Session* const session = FindSession(request.name());
  if (session == nullptr) {
    *refusal = NoSession();
    return nullptr;
  }
  std::optional<grpc::Status> refused;
  if constexpr (!std::is_same_v<Request, v1::RestoreCheckpointRequest>) refused = session->Refusal();
  if (!refused.has_value() && !options_.ignore_session_epochs && request.has_session_epoch() &&
      request.session_epoch() != session->epoch) {
    refused = ServerError(grpc::StatusCode::ABORTED, reason::kEpochMismatch, "another epoch");
  }
  if (!refused.has_value()) return session;
  *refusal = *std::move(refused);
  return nullptr;
}
template FakeGdnService::Session* FakeGdnService::FindUsable(const v1::ExportStateRequest&, grpc::Status*);
template FakeGdnService::Session* FakeGdnService::FindUsable(const v1::WatchStateRequest&, grpc::Status*);

void FakeGdnService::Session::SetStoreBack(const std::string& checkpoint_id) {
  rolled_back = true;
  const auto left = checkpoints.find(checkpoint_id);
  if (left != checkpoints.end()) {
    checkpoints.insert_or_assign("", left->second);
  } else {
    checkpoints.erase("");
  }
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
  if (found == sessions_.end()) return -1;
  const auto state = found->second.now.layers.find(layer);
  return state == found->second.now.layers.end() ? -1 : state->second.toy.token_count;
}

FakeGdnService::Log FakeGdnService::log() const {
  absl::MutexLock lock(&mu_);
  return log_;
}

std::string FakeGdnService::numerics_id() const {
  absl::MutexLock lock(&mu_);
  return numerics_id_;
}

ToyStates FakeGdnService::StatesOf(const Session& session) {
  ToyStates states;
  for (const auto& [index, layer] : session.now.layers) states[index] = layer.toy;
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

void FakeGdnService::State::DropReplies() {
  for (auto& [index, layer] : layers) layer.reply_dropped = true;
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

void FakeGdnService::RefuseNext(const std::string& call, grpc::Status status) {
  absl::MutexLock lock(&mu_);
  refusals_[call].push_back(std::move(status));
}

std::optional<grpc::Status> FakeGdnService::TakeRefusal(const std::string& call) {
  std::deque<grpc::Status>& refusals = refusals_[call];
  if (refusals.empty()) return std::nullopt;
  grpc::Status status = std::move(refusals.front());
  refusals.pop_front();
  return status;
}

std::optional<grpc::Status> FakeGdnService::FailBefore(std::optional<Fault> fault, std::string_view refusal) {
  if (fault == Fault::kUnavailable) return ConnectionBroken();
  if (fault == Fault::kRefuse) return ServerError(grpc::StatusCode::INVALID_ARGUMENT, refusal, "refused");
  if (fault == Fault::kRollBack) {
    for (auto& [name, session] : sessions_) session.SetStoreBack("");
  }
  if (fault == Fault::kLoseState) {
    for (auto& [name, session] : sessions_) session.LoseState();
  }
  if (fault != Fault::kCrashBefore) return std::nullopt;
  CrashLocked();
  return ConnectionBroken();
}

grpc::Status FakeGdnService::FailAfter(std::optional<Fault> fault) {
  if (!fault.has_value() || fault == Fault::kOtherBytes || fault == Fault::kRollBack || fault == Fault::kLoseState) {
    return grpc::Status::OK;
  }
  if (fault == Fault::kCrashAfter) CrashLocked();
  return fault == Fault::kLate ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "late") : ConnectionBroken();
}

void FakeGdnService::CrashLocked() {
  std::erase_if(sessions_, [](const auto& session) { return session.second.checkpoints.count("") == 0; });
  for (auto& [name, session] : sessions_) session.Restore(session.checkpoints.at(""));
}

void FakeGdnService::Save(Session& session, const std::string& checkpoint_id) const {
  State& copy = session.checkpoints[checkpoint_id] = session.now;
  if (options_.save_no_outputs) copy.DropReplies();
}

void FakeGdnService::SaveIfDue(Session& session) {
  if (options_.checkpoint_every_tokens == 0) return;
  for (const auto& [index, layer] : session.now.layers) {
    const v1::LayerState state = Describe(session, index, layer);
    if (state.token_count() - state.durable_token_count() >= options_.checkpoint_every_tokens) {
      Save(session, "");
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
  state.mutable_draft_parents()->Add(layer.toy.draft_parents.begin(), layer.toy.draft_parents.end());
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
  if (session.checkpoints.count("") != 0) out->mutable_durable_time()->set_seconds(1'700'000'000);
  for (const auto& [index, layer] : session.now.layers) *out->add_layers() = Describe(session, index, layer);
}

grpc::Status FakeGdnService::CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest* request,
                                           v1::CreateSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  if (const auto refused = TakeRefusal("CreateSession")) return *refused;
  const std::optional<Fault> fault = TakeNext("CreateSession");
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  if (request->model() != kToyModel) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such model");
  const std::string name = request->session_id().empty() ? StrCat("sessions/unnamed-", log_.sessions_created)
                                                         : "sessions/" + request->session_id();
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
  if (const auto refused = TakeRefusal("GetSession")) return *refused;
  if (const auto failed = FailBefore(TakeNext("GetSession"), reason::kInvalidSpec)) return *failed;
  const Session* const session = FindSession(request->name());
  if (session == nullptr) return NoSession();
  Describe(request->name(), *session, response->mutable_session());
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest* request,
                                           v1::DeleteSessionResponse*) {
  absl::MutexLock lock(&mu_);
  if (const auto refused = TakeRefusal("DeleteSession")) return *refused;
  const std::optional<Fault> fault = TakeNext("DeleteSession");
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  return sessions_.erase(request->name()) != 0 ? FailAfter(fault) : NoSession();
}

grpc::Status FakeGdnService::CheckpointSession(grpc::ServerContext*, const v1::CheckpointSessionRequest* request,
                                               v1::CheckpointSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  if (const auto refused = TakeRefusal("CheckpointSession")) return *refused;
  const std::optional<Fault> fault = TakeNext("CheckpointSession");
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  if (!options_.durable_tier) {
    return ServerError(grpc::StatusCode::FAILED_PRECONDITION, reason::kNoDurableTier, "no --disk-dir");
  }
  grpc::Status refusal;
  Session* const session = FindUsable(*request, &refusal);
  if (session == nullptr) return refusal;
  Save(*session, request->checkpoint_id());
  v1::Checkpoint* const checkpoint = response->mutable_checkpoint();
  checkpoint->set_checkpoint_id(request->checkpoint_id());
  checkpoint->set_epoch(session->epoch);
  for (const auto& [index, layer] : session->now.layers) *checkpoint->add_layers() = Describe(*session, index, layer);
  return FailAfter(fault);
}

grpc::Status FakeGdnService::RestoreCheckpoint(grpc::ServerContext*, const v1::RestoreCheckpointRequest* request,
                                               v1::RestoreCheckpointResponse* response) {
  absl::MutexLock lock(&mu_);
  if (const auto refused = TakeRefusal("RestoreCheckpoint")) return *refused;
  const std::optional<Fault> fault = TakeNext("RestoreCheckpoint");
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  if (!options_.durable_tier) {
    const Session* const lost = FindSession(request->name());
    if (lost != nullptr && lost->lost) return *lost->Refusal();
    return ServerError(grpc::StatusCode::FAILED_PRECONDITION, reason::kNoDurableTier, "no --disk-dir");
  }
  grpc::Status refusal;
  Session* const session = FindUsable(*request, &refusal);
  if (session == nullptr) return refusal;
  const auto checkpoint = session->checkpoints.find(request->checkpoint_id());
  if (checkpoint == session->checkpoints.end()) {
    return ServerError(grpc::StatusCode::NOT_FOUND, reason::kCheckpointNotFound, "no such checkpoint");
  }
  // Durable as restored, as on a server: a crash must not bring back what was given up.
  session->Restore(session->checkpoints.insert_or_assign("", State(checkpoint->second)).first->second);
  Describe(request->name(), *session, response->mutable_session());
  return FailAfter(fault);
}

grpc::Status FakeGdnService::ForkSession(grpc::ServerContext*, const v1::ForkSessionRequest* request,
                                         v1::ForkSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const std::optional<Fault> fault = TakeNext("ForkSession");
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  if (FindSession(request->name()) == nullptr) return NoSession();
  v1::ForkSessionRequest identity = *request;
  identity.clear_session_epoch();
  std::vector<std::string> names, pending;
  for (const std::string& id : request->session_ids()) {
    const std::string& name = names.emplace_back("sessions/" + (id.empty() ? "made-by-the-server" : id));
    const Session* const taken = FindSession(name);
    if (taken == nullptr) pending.push_back(name);
    if (taken != nullptr && taken->create != identity.SerializeAsString()) {
      return ServerError(grpc::StatusCode::ALREADY_EXISTS, reason::kSessionExists, "made by another request");
    }
  }
  if (!pending.empty()) {
    grpc::Status refusal;
    const Session* const parent = FindUsable(*request, &refusal);
    if (parent == nullptr) return refusal;
    Session child;
    child.create = identity.SerializeAsString();
    child.now = parent->now;
    child.now.accept_id.clear();
    for (auto& [index, layer] : child.now.layers) layer.reply_id.clear();
    for (const std::string& name : pending) sessions_.insert_or_assign(name, child);
  }
  for (const std::string& name : names) Describe(name, *FindSession(name), response->add_sessions());
  return FailAfter(fault);
}

grpc::Status FakeGdnService::PrefetchSessions(grpc::ServerContext*, const v1::PrefetchSessionsRequest* request,
                                              v1::PrefetchSessionsResponse* response) {
  absl::MutexLock lock(&mu_);
  log_.prefetched.assign(request->names().begin(), request->names().end());
  response->set_started(request->names_size());
  return grpc::Status::OK;
}

}  // namespace gdn
