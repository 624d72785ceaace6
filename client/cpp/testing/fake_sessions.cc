// The sessions of FakeGdnService.
#include "client/cpp/testing/fake_gdn_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/testing/server_error.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

// Plan counts these, PlanNext is for the others.
constexpr std::string_view kSteps[] = {"Prefill", "StreamPrefill", "Decode",      "StreamDecode",
                                       "Step",    "StreamStep",    "AcceptTokens"};

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

void FakeGdnService::Session::LoseState() {
  if (!unusable.ok()) return;
  const int32_t layer = now.layers.begin()->first;
  unusable = StateLost(id, layer, /*durable=*/checkpoints.contains(""), absl::InternalError("as the test planned"));
}

void FakeGdnService::Session::Restore(const State& checkpoint) {
  now = checkpoint;
  unusable = absl::OkStatus();
  ++epoch;
}

LayerFacts FakeGdnService::Layer::Facts(int32_t index) const {
  return {.layer = index,
          .token_count = toy.token_count,
          .draft_length = toy.draft_length(),
          .draft_parents = toy.draft_parents,
          .stored = {.request_id = request_id, .payload = payload},
          .output_dropped = reply_dropped};
}

SessionFacts FakeGdnService::Session::Facts() const {
  return {.id = id,
          .epoch = epoch,
          .accept_request_id = now.accepted.request_id,
          .accepted_tokens = now.accepted.accepted_tokens,
          .accepted_path = now.accepted.path};
}

std::vector<LayerFacts> FakeGdnService::Session::AllLayers() const {
  std::vector<LayerFacts> facts;
  for (const auto& [index, layer] : now.layers) facts.push_back(layer.Facts(index));
  return facts;
}

absl::StatusOr<FakeGdnService::Session*> FakeGdnService::Find(const std::string& name) {
  GDN_ASSIGN_OR_RETURN(const std::string_view id, ParseSessionName(name));
  const auto found = sessions_.find(name);
  if (found == sessions_.end()) return SessionNotFound(std::string(id));
  return &found->second;
}

void FakeGdnService::Session::SetStoreBack(const std::string& checkpoint_id) {
  if (unusable.ok()) {
    unusable = MakeError(absl::StatusCode::kDataLoss, reason::kStateRolledBack, "an older state is left, or none");
  }
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

void FakeGdnService::State::DropReplies() {
  for (auto& [index, layer] : layers) layer.reply_dropped = true;
}

std::optional<Fault> FakeGdnService::TakeFault(const std::string& method) {
  if (std::ranges::find(kSteps, method) != std::end(kSteps)) {
    const auto planned = plan_.extract(log_.steps++);
    return planned.empty() ? std::nullopt : std::optional(planned.mapped());
  }
  std::vector<Fault>& faults = next_faults_[method];
  if (faults.empty()) return std::nullopt;
  const Fault fault = faults.front();
  faults.erase(faults.begin());
  return fault;
}

void FakeGdnService::RefuseNext(const std::string& call, grpc::Status status) {
  absl::MutexLock lock(&mu_);
  refusals_[call].push_back(std::move(status));
}

grpc::Status FakeGdnService::Call(const std::string& method,
                                  absl::FunctionRef<absl::Status(std::optional<Fault>)> done) {
  const grpc::Status broken(grpc::StatusCode::UNAVAILABLE, "the connection broke");
  absl::MutexLock lock(&mu_);
  if (std::deque<grpc::Status>& refusals = refusals_[method]; !refusals.empty()) {
    grpc::Status refusal = std::move(refusals.front());
    refusals.pop_front();
    return refusal;
  }
  const std::optional<Fault> fault = TakeFault(method);
  if (fault == Fault::kRefuse) {
    return ServerError(MakeError(absl::StatusCode::kInvalidArgument, reason::kNonFiniteInput, "refused"));
  }
  for (auto& [name, session] : sessions_) {
    if (fault == Fault::kRollBack) session.SetStoreBack("");
    if (fault == Fault::kLoseState) session.LoseState();
  }
  if (fault == Fault::kCrashBefore) CrashLocked();
  if (fault == Fault::kUnavailable || fault == Fault::kCrashBefore) return broken;
  if (const absl::Status status = done(fault); !status.ok()) return ServerError(status);
  if (fault == Fault::kCrashAfter) CrashLocked();
  if (fault == Fault::kLate) return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "late");
  const bool lost = fault == Fault::kLoseReply || fault == Fault::kDropReply || fault == Fault::kCrashAfter;
  return lost ? broken : grpc::Status::OK;
}

void FakeGdnService::CrashLocked() {
  first_loss_mark_ += static_cast<int64_t>(lost_snapshots_.size()) + 1'000'000;
  lost_snapshots_.clear();
  snapshots_.clear();
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

void FakeGdnService::Describe(const Session& session, v1::Session* out) {
  out->set_name(SessionName(session.id));
  out->set_model(kToyModel);
  out->set_epoch(session.epoch);
  out->set_lease(session.lease);
  out->set_tier(v1::STATE_TIER_HOST);
  if (session.checkpoints.count("") != 0) out->mutable_durable_time()->set_seconds(1'700'000'000);
  for (const auto& [index, layer] : session.now.layers) *out->add_layers() = Describe(session, index, layer);
}

grpc::Status FakeGdnService::CreateSession(Context*, const v1::CreateSessionRequest* request,
                                           v1::CreateSessionResponse* response) {
  return Call("CreateSession", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_RETURN_IF_ERROR(CheckSessionId(request->session_id()));
    if (request->model() != kToyModel && request->snapshot().empty()) return absl::NotFoundError("no such model");
    GDN_RETURN_IF_ERROR(CheckLease(request->lease()));
    const Session* snapshot = nullptr;
    if (!request->snapshot().empty() && !sessions_.contains(SessionName(request->session_id()))) {
      GDN_ASSIGN_OR_RETURN(snapshot, FindSnapshot(request->snapshot()));
    }
    response->set_snapshot_loss_mark(SnapshotLossMark());
    const std::string id =
        request->session_id().empty() ? StrCat("unnamed-", log_.sessions_created) : request->session_id();
    const auto [entry, made] = sessions_.emplace(SessionName(id), Session{.id = id});
    Session& session = entry->second;
    if (made) {
      ++log_.sessions_created;
      session.create = request->SerializeAsString();
      session.lease = request->lease();
      for (int32_t layer = 0; layer < options_.layers; ++layer) session.now.layers[layer];
      if (options_.layers == 0) session.now.layers = {{kToyLayers[0], {}}, {kToyLayers[1], {}}};
      for (const auto& state : request->initial_states()) {
        session.now.layers.at(state.layer()).toy.token_count = state.token_count();
      }
      if (snapshot != nullptr) session.now = snapshot->now;
    } else if (session.create != request->SerializeAsString()) {
      return SessionExists(id);
    }
    Describe(session, response->mutable_session());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::GetSession(Context*, const v1::GetSessionRequest* request,
                                        v1::GetSessionResponse* response) {
  return Call("GetSession", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_ASSIGN_OR_RETURN(const Session* const session, Find(request->name()));
    Describe(*session, response->mutable_session());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::DeleteSession(Context*, const v1::DeleteSessionRequest* request,
                                           v1::DeleteSessionResponse*) {
  return Call("DeleteSession", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_RETURN_IF_ERROR(Find(request->name()).status());
    sessions_.erase(request->name());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::CheckpointSession(Context*, const v1::CheckpointSessionRequest* request,
                                               v1::CheckpointSessionResponse* response) {
  return Call("CheckpointSession", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_ASSIGN_OR_RETURN(Session* const session, Find(request->name()));
    GDN_RETURN_IF_ERROR(CheckDurable());
    GDN_RETURN_IF_ERROR(session->unusable);
    GDN_RETURN_IF_ERROR(CheckEpochOf(*session, *request));
    Save(*session, request->checkpoint_id());
    v1::Checkpoint* const checkpoint = response->mutable_checkpoint();
    checkpoint->set_checkpoint_id(request->checkpoint_id());
    checkpoint->set_epoch(session->epoch);
    for (const auto& [index, layer] : session->now.layers) *checkpoint->add_layers() = Describe(*session, index, layer);
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::ListCheckpoints(Context*, const v1::ListCheckpointsRequest* request,
                                             v1::ListCheckpointsResponse* response) {
  constexpr int64_t kBytes = 1024;
  return Call("ListCheckpoints", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_ASSIGN_OR_RETURN(const Session* const session, Find(request->name()));
    GDN_RETURN_IF_ERROR(CheckDurable());
    for (const auto& [id, states] : session->checkpoints) {
      if (id.empty()) continue;
      v1::Checkpoint* const checkpoint = response->add_checkpoints();
      checkpoint->set_checkpoint_id(id);
      checkpoint->set_epoch(session->epoch);
      checkpoint->set_written_bytes(kBytes);
      for (const auto& [index, layer] : states.layers) *checkpoint->add_layers() = Describe(*session, index, layer);
      response->set_stored_bytes(response->stored_bytes() + kBytes);
    }
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::DeleteCheckpoint(Context*, const v1::DeleteCheckpointRequest* request,
                                              v1::DeleteCheckpointResponse*) {
  return Call("DeleteCheckpoint", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_ASSIGN_OR_RETURN(Session* const session, Find(request->name()));
    GDN_RETURN_IF_ERROR(CheckNamedCheckpointId(request->checkpoint_id()));
    GDN_RETURN_IF_ERROR(CheckDurable());
    GDN_RETURN_IF_ERROR(session->unusable);
    if (session->checkpoints.erase(request->checkpoint_id()) != 0) return absl::OkStatus();
    return CheckpointNotFound(session->id, request->checkpoint_id());
  });
}

grpc::Status FakeGdnService::RestoreCheckpoint(Context*, const v1::RestoreCheckpointRequest* request,
                                               v1::RestoreCheckpointResponse* response) {
  return Call("RestoreCheckpoint", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_ASSIGN_OR_RETURN(Session* const session, Find(request->name()));
    if (!CheckDurable().ok()) return session->unusable.ok() ? CheckDurable() : session->unusable;
    GDN_RETURN_IF_ERROR(CheckEpochOf(*session, *request));
    const auto checkpoint = session->checkpoints.find(request->checkpoint_id());
    if (checkpoint == session->checkpoints.end()) return CheckpointNotFound(session->id, request->checkpoint_id());
    // Durable as restored, as on a server: a crash must not bring back what was given up.
    session->Restore(session->checkpoints.insert_or_assign("", State(checkpoint->second)).first->second);
    Describe(*session, response->mutable_session());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::ForkSession(Context*, const v1::ForkSessionRequest* request,
                                         v1::ForkSessionResponse* response) {
  return Call("ForkSession", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    const Session* parent = nullptr;
    if (request->snapshot().empty()) {
      GDN_ASSIGN_OR_RETURN(parent, Find(request->name()));
    } else {
      GDN_ASSIGN_OR_RETURN(parent, FindSnapshot(request->snapshot()));
    }
    response->set_snapshot_loss_mark(SnapshotLossMark());
    v1::ForkSessionRequest identity = *request;
    identity.clear_session_epoch();
    Session child{.id = {},
                  .create = identity.SerializeAsString(),
                  .lease = request->has_lease() ? request->lease() : parent->lease};
    GDN_RETURN_IF_ERROR(CheckLease(child.lease));
    for (const auto& [index, layer] : parent->now.layers) child.now.layers[index].toy = layer.toy;
    std::vector<std::string> ids(request->session_ids().begin(), request->session_ids().end());
    std::ranges::replace(ids, std::string(), std::string("made-by-the-server"));
    std::map<std::string, Session> pending;
    for (const std::string& id : ids) {
      const auto taken = sessions_.find(SessionName(id));
      child.id = id;
      if (taken == sessions_.end()) pending.emplace(SessionName(id), child);
      if (taken != sessions_.end() && taken->second.create != child.create) return SessionExists(id);
    }
    if (!pending.empty()) {
      GDN_RETURN_IF_ERROR(parent->unusable);
      GDN_RETURN_IF_ERROR(CheckEpochOf(*parent, *request));
    }
    sessions_.merge(pending);
    for (const std::string& id : ids) Describe(sessions_.at(SessionName(id)), response->add_sessions());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::PrefetchSessions(Context*, const v1::PrefetchSessionsRequest* request,
                                              v1::PrefetchSessionsResponse* response) {
  absl::MutexLock lock(&mu_);
  log_.prefetched.assign(request->names().begin(), request->names().end());
  response->set_started(request->names_size());
  return grpc::Status::OK;
}

}  // namespace gdn
