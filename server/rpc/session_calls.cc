#include "server/rpc/session_calls.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/strings/strip.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/info_calls.h"
#include "server/validation/names.h"
#include "server/validation/session_spec.h"

namespace gdn {
namespace {

constexpr int32_t kDefaultPageSize = 50;
constexpr int32_t kMaxPageSize = 1000;
constexpr std::string_view kPageTokenPrefix = "after:";

v1::InputKind ToProto(InputKind kind) {
  switch (kind) {
    case InputKind::kHiddenStates:
      return v1::INPUT_KIND_HIDDEN_STATES;
    case InputKind::kProjected:
      return v1::INPUT_KIND_PROJECTED;
    case InputKind::kDeltaRule:
      return v1::INPUT_KIND_DELTA_RULE;
    default:
      return v1::INPUT_KIND_UNSPECIFIED;
  }
}

// Initial states as the snapshot they amount to: what is not given is zero.
Snapshot ToSnapshot(std::vector<CheckedInitialState> states, const SessionSpec& spec) {
  Snapshot snapshot;
  snapshot.dims = spec.dims;
  snapshot.model_fingerprint = spec.fingerprint;
  for (CheckedInitialState& state : states) {
    LayerSnapshot& layer = snapshot.layers.emplace_back();
    layer.layer = state.layer;
    layer.token_count = state.token_count;
    layer.image.base = std::move(state.recurrent_state);
    layer.image.base.resize(static_cast<size_t>(spec.dims.state_elements()));
    if (spec.dims.has_layer()) {
      layer.image.conv = std::move(state.conv_state);
      layer.image.conv.resize(static_cast<size_t>(spec.dims.conv_channels() * (spec.dims.conv_width - 1)));
    }
  }
  return snapshot;
}

absl::StatusOr<SessionSpec> SpecOf(const ServiceContext& context, const v1::CreateSessionRequest& request) {
  switch (request.spec_case()) {
    case v1::CreateSessionRequest::kModel:
      return SpecOfModel(context, request.model());
    case v1::CreateSessionRequest::kOperator:
      return SpecOfOperator(request.operator_());
    default:
      return SpecMissing();
  }
}

}  // namespace

absl::Status SpecMissing() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   "no spec is set; name a model (\"models/NAME\") or give an operator's dimensions",
                   {{"field", "spec"}});
}

absl::StatusOr<SessionSpec> SpecOfModel(const ServiceContext& context, const std::string& name) {
  GDN_ASSIGN_OR_RETURN(const ServedModel* model, FindModel(context, name));
  SessionSpec spec{.model = model->name, .dims = model->dims, .layers = {}, .fingerprint = model->fingerprint};
  for (const auto& [index, weights] : model->layers) spec.layers.push_back(index);
  return spec;
}

absl::StatusOr<SessionSpec> SpecOfOperator(const v1::OperatorSpec& spec) {
  GDN_ASSIGN_OR_RETURN(const OperatorDims op, CheckOperatorSpec(spec));
  SessionSpec result{.model = "", .dims = op.dims, .layers = {}, .fingerprint = ""};
  result.layers.resize(static_cast<size_t>(op.layer_count));
  std::iota(result.layers.begin(), result.layers.end(), 0);
  return result;
}

void FillSession(const Session& session, v1::Session* out) {
  out->set_name(SessionName(session.id()));
  const SessionSpec& spec = session.spec();
  if (spec.model.empty()) {
    v1::OperatorSpec* op = out->mutable_operator_();
    op->set_key_heads(spec.dims.key_heads);
    op->set_value_heads(spec.dims.value_heads);
    op->set_key_dim(spec.dims.key_dim);
    op->set_value_dim(spec.dims.value_dim);
    op->set_layer_count(static_cast<int32_t>(spec.layers.size()));
  } else {
    out->set_model(ModelName(spec.model));
  }
  out->set_affinity(session.affinity());
  for (const LayerInfo& info : session.Layers()) {
    v1::LayerState* layer = out->add_layers();
    layer->set_layer(info.layer);
    layer->set_token_count(info.progress.token_count);
    layer->set_log_length(info.progress.log_length);
    layer->set_input_kind(ToProto(info.kind));
  }
  const int64_t nanos = absl::ToUnixNanos(session.create_time());
  out->mutable_create_time()->set_seconds(nanos / 1'000'000'000);
  out->mutable_create_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  out->set_state_bytes(session.slots().bytes());
}

absl::StatusOr<std::shared_ptr<Session>> FindSession(const ServiceContext& context, const std::string& principal,
                                                     const std::string& name) {
  GDN_ASSIGN_OR_RETURN(const std::string id, ParseSessionName(name));
  return context.sessions.Find(principal, id);
}

void CreateFromSnapshot(const ServiceContext& context, SessionCreation creation, Snapshot snapshot, v1::Session* out,
                        CallDone done) {
  // std::function wants copyable captures; the creation is not.
  auto shared = std::make_shared<SessionCreation>(std::move(creation));
  auto finish = [shared, out, done = std::move(done)](absl::Status status) mutable {
    if (status.ok()) {
      const Session& made = *shared->session();
      shared->Publish();
      FillSession(made, out);
      spdlog::info("session created id={} model={} layers={} state_bytes={}", made.id(),
                   made.spec().model.empty() ? "(operator)" : made.spec().model, made.spec().layers.size(),
                   made.slots().bytes());
    }
    shared.reset();  // before anybody hears of it: a session that is then deleted frees its states at once
    done(std::move(status));
  };
  if (snapshot.layers.empty()) return finish(absl::OkStatus());
  auto restore = [session = shared->session(), snapshot = std::move(snapshot)](Backend& backend) {
    GDN_ASSIGN_OR_RETURN(SessionLease lease, session->LockAll());
    return RestoreSession(backend, snapshot, lease);
  };
  context.batcher.Post(std::move(restore), std::move(finish));
}

void CreateSession(const ServiceContext& context, const std::string& principal, const v1::CreateSessionRequest& request,
                   v1::CreateSessionResponse* response, CallDone done) {
  const auto begin = [&]() -> absl::StatusOr<std::pair<SessionCreation, Snapshot>> {
    GDN_RETURN_IF_ERROR(CheckMessageSize(static_cast<int64_t>(request.ByteSizeLong()), context.limits));
    GDN_RETURN_IF_ERROR(CheckSessionId(request.session_id()));
    GDN_RETURN_IF_ERROR(CheckAffinity(request.affinity()));
    GDN_ASSIGN_OR_RETURN(SessionSpec spec, SpecOf(context, request));
    GDN_ASSIGN_OR_RETURN(auto states, CheckInitialStates(request.initial_states(), spec.dims, spec.layers));
    Snapshot snapshot = ToSnapshot(std::move(states), spec);
    GDN_ASSIGN_OR_RETURN(SessionCreation creation,
                         context.sessions.Begin(principal, request.session_id(), std::move(spec), request.affinity(),
                                                HashCreateRequest(request)));
    return std::pair(std::move(creation), std::move(snapshot));
  };
  auto begun = begin();
  if (!begun.ok()) return done(begun.status());
  auto& [creation, snapshot] = *begun;
  if (!creation.pending()) {
    FillSession(*creation.session(), response->mutable_session());
    return done(absl::OkStatus());
  }
  CreateFromSnapshot(context, std::move(creation), std::move(snapshot), response->mutable_session(), std::move(done));
}

absl::Status GetSession(const ServiceContext& context, const std::string& principal,
                        const v1::GetSessionRequest& request, v1::GetSessionResponse* response) {
  GDN_ASSIGN_OR_RETURN(const auto session, FindSession(context, principal, request.name()));
  FillSession(*session, response->mutable_session());
  return absl::OkStatus();
}

absl::Status ListSessions(const ServiceContext& context, const std::string& principal,
                          const v1::ListSessionsRequest& request, v1::ListSessionsResponse* response) {
  if (request.page_size() < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("page_size is ", request.page_size(), ", expected 0 (default) .. ", kMaxPageSize),
                     {{"field", "page_size"}});
  }
  std::string_view after = request.page_token();
  if (!after.empty()) {
    const bool has_prefix = after.substr(0, kPageTokenPrefix.size()) == kPageTokenPrefix;
    after.remove_prefix(has_prefix ? kPageTokenPrefix.size() : 0);
    if (!has_prefix || after.empty() || !CheckSessionId(after).ok()) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidPageToken,
                       "page_token is not one that ListSessions returned; send next_page_token unchanged, or none");
    }
  }
  const int32_t wanted = request.page_size() == 0 ? kDefaultPageSize : std::min(request.page_size(), kMaxPageSize);
  // One more than the page tells whether there is another.
  const auto sessions = context.sessions.List(principal, std::string(after), static_cast<size_t>(wanted) + 1);
  const size_t shown = std::min(sessions.size(), static_cast<size_t>(wanted));
  for (size_t i = 0; i < shown; ++i) FillSession(*sessions[i], response->add_sessions());
  if (sessions.size() > shown) {
    response->set_next_page_token(StrCat(kPageTokenPrefix, sessions[shown - 1]->id()));
  }
  return absl::OkStatus();
}

absl::Status DeleteSession(const ServiceContext& context, const std::string& principal,
                           const v1::DeleteSessionRequest& request) {
  GDN_ASSIGN_OR_RETURN(const std::string id, ParseSessionName(request.name()));
  GDN_RETURN_IF_ERROR(context.sessions.Delete(principal, id));
  spdlog::info("session deleted id={}", id);
  return absl::OkStatus();
}

}  // namespace gdn
