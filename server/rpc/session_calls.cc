// CreateSession, GetSession, ListSessions, DeleteSession, and code that creation shares with import.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/status_macros.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/calls.h"
#include "server/rpc/fork_children.h"
#include "server/rpc/prompt.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/snapshot_calls.h"
#include "server/session/session_errors.h"
#include "server/validation/names.h"
#include "server/validation/session_spec.h"

namespace gdn {
namespace {

using google::protobuf::util::TimeUtil;

constexpr int32_t kDefaultPageSize = 50;
constexpr int32_t kMaxPageSize = 1000;
constexpr size_t kMaxPageLayers = 4096;  // keeps a reply below 1 MiB
constexpr std::string_view kPageTokenPrefix = "after:";
constexpr std::string_view kPageTokenPrefixOfAll = "all-after:";  // followed by principal, '/' and id

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

// Converts the tensor to float32 in `floats`. Does nothing for an absent tensor.
void Widen(const TensorView& view, std::vector<float>& floats) {
  if (view.data.empty()) return;
  floats.resize(static_cast<size_t>(view.ElementCount()));
  ConvertToFloat(view.dtype, view.data.data(), floats.size(), floats.data());
}

// Makes an image from initial states; states that are not given are zero. A zero recurrent state takes no memory here.
// The others are charged to the caller as copies until they are on the device.
absl::StatusOr<SessionImagePtr> ToImage(const SessionParts& parts, const ByteAccountPtr& account,
                                        const std::vector<CheckedInitialState>& states, const SessionSpec& spec) {
  struct Floats {
    std::vector<float> recurrent, conv;
    std::shared_ptr<const void> rounded;
  };
  struct Owner {
    ByteCharge charge;
    std::vector<float> zero_conv;  // shared by all layers without one
    std::vector<Floats> layers;
  };
  auto image = std::make_shared<SessionImage>();
  GDN_ASSIGN_OR_RETURN(image->layout, parts.states.store().LayoutOf(spec.dims));
  image->numerics_id = parts.numerics_id;
  const auto owner = std::make_shared<Owner>();
  const int64_t conv = spec.dims.has_layer() ? spec.dims.conv_channels() * (spec.dims.conv_width - 1) : 0;
  const bool rounds = image->layout.base_dtype() != DType::kF32;
  int64_t floats = states.empty() ? 0 : conv;
  for (const CheckedInitialState& state : states) {
    if (!state.recurrent_state.data.empty()) floats += (rounds ? 2 : 1) * spec.dims.state_elements();
    if (!state.conv_state.data.empty()) floats += conv;
  }
  GDN_ASSIGN_OR_RETURN(owner->charge, parts.access.ledger.TryCharge(BytePool::kCopies, account,
                                                                    floats * static_cast<int64_t>(sizeof(float))));
  owner->zero_conv.resize(states.empty() ? 0 : static_cast<size_t>(conv));
  owner->layers.resize(states.size());
  image->owner = owner;
  for (size_t i = 0; i < states.size(); ++i) {
    Floats& own = owner->layers[i];
    Widen(states[i].recurrent_state, own.recurrent);
    Widen(states[i].conv_state, own.conv);
    LayerImage& layer = image->layers.emplace_back();
    layer.layer = states[i].layer;
    layer.extent.token_count = states[i].token_count;
    layer.wire.base = own.recurrent;
    layer.wire.conv = own.conv.empty() ? owner->zero_conv : own.conv;
    if (layer.wire.has_base()) own.rounded = ConvertBase(image->layout, layer.wire);
    GDN_RETURN_IF_ERROR(CheckSlotView(image->layout, layer.extent, layer.wire));
  }
  return image;
}

v1::StateTier TierOf(StateService& states, const Session& session) {
  if (session.resident()) return v1::STATE_TIER_DEVICE;
  const std::string place = states.tiers().PlaceOf(session.key());
  if (place == "host") return v1::STATE_TIER_HOST;
  if (place == "disk") return v1::STATE_TIER_DISK;
  if (place == "redis") return v1::STATE_TIER_REDIS;
  return v1::STATE_TIER_UNSPECIFIED;  // moving between tiers
}

// The last session of a page.
struct SessionPlace {
  std::string principal = {};  // set for pages over all principals
  std::string id = {};
};

absl::StatusOr<SessionPlace> ReadPageToken(const v1::ListSessionsRequest& request) {
  std::string_view token = request.page_token();
  if (token.empty()) return SessionPlace();
  const std::string_view prefix = request.all() ? kPageTokenPrefixOfAll : kPageTokenPrefix;
  const bool has_prefix = token.substr(0, prefix.size()) == prefix;
  if (has_prefix) token.remove_prefix(prefix.size());
  const size_t slash = request.all() ? token.find('/') : 0;
  const bool is_whole = has_prefix && slash != std::string_view::npos;
  const std::string_view id = !is_whole ? "" : request.all() ? token.substr(slash + 1) : token;
  if (id.empty() || !CheckSessionId(id).ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidPageToken,
                     "page_token is not one that ListSessions returned; send next_page_token unchanged, with the same "
                     "`all`, or none");
  }
  return SessionPlace{.principal = std::string(token.substr(0, slash)), .id = std::string(id)};
}

std::string WritePageToken(const v1::ListSessionsRequest& request, const Session& last) {
  if (request.all()) return StrCat(kPageTokenPrefixOfAll, last.principal(), "/", last.id());
  return StrCat(kPageTokenPrefix, last.id());
}

}  // namespace

absl::Status SpecMissing() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   "no spec is set; name a model (\"models/NAME\") or give an operator's dimensions",
                   {{"field", "spec"}});
}

absl::StatusOr<const ServedModel*> FindModel(const ModelCatalog& models, const std::string& name) {
  GDN_ASSIGN_OR_RETURN(const std::string_view id, ParseModelName(name));
  const auto it = models.find(std::string(id));
  if (it != models.end()) return &it->second;
  std::vector<std::string> names;
  for (const auto& [known, model] : models) names.push_back(ModelName(known));
  return MakeError(
      absl::StatusCode::kNotFound, reason::kModelNotFound,
      StrCat("no model named '", name, "'; this server has: ", names.empty() ? "none" : absl::StrJoin(names, ", ")),
      {{"model", name}});
}

absl::StatusOr<SessionSpec> SpecOfModel(const ModelCatalog& models, const std::string& name) {
  GDN_ASSIGN_OR_RETURN(const ServedModel* model, FindModel(models, name));
  SessionSpec spec{.model = model->name,
                   .dims = model->dims,
                   .layers = {},
                   .fingerprint = model->fingerprint,
                   .family = model->family,
                   .slice = model->slice};
  for (const auto& [index, weights] : model->layers) spec.layers.push_back(index);
  return spec;
}

absl::StatusOr<SessionSpec> SpecOfOperator(const v1::OperatorSpec& spec) {
  GDN_ASSIGN_OR_RETURN(const OperatorDims op, CheckOperatorSpec(spec));
  SessionSpec result{.model = "", .dims = op.dims, .layers = {}, .fingerprint = "", .family = ""};
  result.layers.resize(static_cast<size_t>(op.layer_count));
  std::iota(result.layers.begin(), result.layers.end(), 0);
  return result;
}

absl::Status KeepLifetimesToQuotas(ByteLedger& ledger, bool asked_idle, bool asked_lifetime, SessionInit& init) {
  const auto keep = [&](Quota quota, bool asked, absl::Duration& time) -> absl::Status {
    const int64_t limit = init.account->quota(quota);
    if (limit == kNoQuota || time <= absl::Nanoseconds(limit)) return absl::OkStatus();
    if (asked) {
      return ledger.RefuseQuota({.quota = quota, .needed = absl::ToInt64Nanoseconds(time), .limit = limit});
    }
    time = absl::Nanoseconds(limit);
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(keep(Quota::kIdleTtl, asked_idle, init.idle_ttl));
  return keep(Quota::kMaxLifetime, asked_lifetime, init.max_lifetime);
}

void FillLayers(const std::vector<LayerInfo>& layers, google::protobuf::RepeatedPtrField<v1::LayerState>* out) {
  for (const LayerInfo& info : layers) {
    v1::LayerState* layer = out->Add();
    layer->set_layer(info.layer);
    layer->set_token_count(info.progress.token_count);
    layer->set_log_length(info.progress.log_length);
    layer->set_draft_length(info.progress.draft_length);
    layer->set_input_kind(ToProto(info.kind));
    layer->set_durable_token_count(info.durable_token_count);
    const std::vector<int32_t>& parents = info.progress.draft_parents;
    layer->mutable_draft_parents()->Add(parents.begin(), parents.end());
  }
}

void FillSession(StateService& states, const Session& session, v1::Session* out) {
  out->set_name(SessionName(session.id()));
  const SessionSpec& spec = session.spec();
  if (spec.model.empty()) {
    v1::OperatorSpec* op = out->mutable_operator_();
    op->set_key_heads(spec.dims.key_heads);
    op->set_value_heads(spec.dims.value_heads);
    op->set_key_dim(spec.dims.key_dim);
    op->set_value_dim(spec.dims.value_dim);
    op->set_layer_count(static_cast<int32_t>(spec.layers.size()));
    op->set_decay(ToProto(spec.dims.decay));
  } else {
    out->set_model(ModelName(spec.model));
  }
  out->set_affinity(session.affinity());
  out->set_prefix_tokens(session.prefix_tokens());
  if (session.lease() != nullptr) out->set_lease(LeaseName(session.lease()->id()));
  FillLayers(session.Layers(), out->mutable_layers());
  *out->mutable_create_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(session.create_time()));
  if (const auto layout = states.store().LayoutOf(spec.dims); layout.ok()) {
    out->set_state_bytes(layout->slot_bytes() * static_cast<int64_t>(spec.layers.size()));
  }
  out->set_epoch(session.epoch());
  out->set_tier(TierOf(states, session));
  const auto duration = [](absl::Duration d) { return TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(d)); };
  if (session.idle_ttl() < absl::InfiniteDuration()) *out->mutable_idle_ttl() = duration(session.idle_ttl());
  if (session.max_lifetime() < absl::InfiniteDuration()) {
    *out->mutable_max_lifetime() = duration(session.max_lifetime());
  }
  if (const absl::Time durable = session.durable_time(); durable > absl::InfinitePast()) {
    *out->mutable_durable_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(durable));
  }
}

namespace {

// Finds the longest kept prefix of the request's prompt; empty if there is none.
absl::StatusOr<PrefixStart> FindStart(const SessionParts& parts, const Caller& caller, const SessionSpec& spec,
                                      const v1::CreateSessionRequest& request) {
  if (!request.has_prefix()) return PrefixStart();
  if (!request.initial_states().empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     "both prefix and initial_states are set; a prompt that has a prefix begins at zero",
                     {{"field", "initial_states"}});
  }
  GDN_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(parts, caller.principal, spec, request.prefix()));
  return parts.states.prefixes().Find(prompt.keys);
}

// A session that was begun, and the image of its states.
struct Beginning {
  SessionCreation creation;
  SessionImagePtr image;
};

absl::StatusOr<Beginning> BeginSession(const SessionParts& parts, const Caller& caller, const std::string& id,
                                       const v1::CreateSessionRequest& request, ClientLeasePtr lease) {
  GDN_RETURN_IF_ERROR(CheckMessageSize(static_cast<int64_t>(request.ByteSizeLong()), parts.limits));
  GDN_RETURN_IF_ERROR(CheckSessionId(request.session_id()));
  GDN_RETURN_IF_ERROR(CheckAffinity(request.affinity()));
  GDN_ASSIGN_OR_RETURN(SessionSpec spec, SpecOf(parts.models, request));
  GDN_ASSIGN_OR_RETURN(spec.layers, CheckSessionLayers(request, spec.layers));
  SessionInit init{.principal = caller.principal,
                   .id = id,
                   .spec = spec,
                   .affinity = request.affinity(),
                   .account = caller.account,
                   .request = HashCreateRequest(request),
                   .lease = std::move(lease)};
  GDN_RETURN_IF_ERROR(SetLifetimes(parts, request, init));
  GDN_ASSIGN_OR_RETURN(const auto states, CheckInitialStates(request.initial_states(), spec.dims, spec.layers));
  GDN_ASSIGN_OR_RETURN(const PrefixStart start, FindStart(parts, caller, spec, request));
  init.prefix_tokens = start.tokens;
  GDN_ASSIGN_OR_RETURN(SessionCreation creation, parts.lookup.sessions.Begin(std::move(init)));
  Beginning beginning{.creation = std::move(creation), .image = start.image};
  if (!beginning.creation.pending()) return beginning;
  if (request.has_prefix()) parts.states.prefixes().NoteStart(start);
  if (beginning.image == nullptr) {
    GDN_ASSIGN_OR_RETURN(beginning.image, ToImage(parts, caller.account, states, spec));
  }
  return beginning;
}

// OK if the request asks for nothing that its snapshot does not have.
absl::Status CheckFitsSnapshot(const SessionParts& parts, const v1::CreateSessionRequest& request,
                               const SessionSpec& snapshot) {
  if (request.spec_case() == v1::CreateSessionRequest::SPEC_NOT_SET) return absl::OkStatus();
  GDN_ASSIGN_OR_RETURN(const SessionSpec spec, SpecOf(parts.models, request));
  const bool same_layers = !spec.model.empty() || spec.layers == snapshot.layers;
  if (spec.model == snapshot.model && spec.dims == snapshot.dims && same_layers) return absl::OkStatus();
  const auto shown = [](const SessionSpec& of) {
    return of.model.empty() ? StrCat("an operator with ", of.layers.size(), " layers, ", LayerDimsToString(of.dims))
                            : ModelName(of.model);
  };
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                   StrCat("the snapshot '", request.snapshot(), "' is of ", shown(snapshot), ", the request is for ",
                          shown(spec), "; leave the spec out, or name the snapshot's"),
                   {{"field", "spec"}, {"found", shown(snapshot)}, {"expected", shown(spec)}});
}

// Creates a session that starts from a snapshot. `id`: the request's, or a random one.
Task<absl::Status> CreateFromSnapshot(const SessionParts& parts, const Caller& caller, const std::string& id,
                                      const v1::CreateSessionRequest& request, v1::CreateSessionResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckMessageSize(static_cast<int64_t>(request.ByteSizeLong()), parts.limits));
  GDN_CO_RETURN_IF_ERROR(CheckSessionId(request.session_id()));
  GDN_CO_RETURN_IF_ERROR(CheckAffinity(request.affinity()));
  const std::string_view other = !request.initial_states().empty() ? "initial_states"
                                 : request.has_prefix()            ? "prefix"
                                 : !request.layers().empty()       ? "layers"
                                                                   : "";
  if (!other.empty()) {
    co_return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                        StrCat("both snapshot and ", other, " are set; a session has the snapshot's states and layers"),
                        {{"field", std::string(other)}});
  }
  const Hash128 hash = HashCreateRequest(request);
  std::shared_ptr<Session> session =
      parts.lookup.sessions.Peek({.principal = caller.principal, .id = id, .checkpoint = ""});
  // A retry finds its session even if the snapshot is gone meanwhile.
  if (id.empty() || session == nullptr || session->request() != hash) {
    GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> snapshot, FindSnapshot(parts, caller, request.snapshot()));
    GDN_CO_RETURN_IF_ERROR(CheckFitsSnapshot(parts, request, snapshot->spec()));
    Task<absl::StatusOr<ClientLeasePtr>> named = LeaseNamed(parts, caller, request.lease());
    GDN_CO_ASSIGN_OR_RETURN(ClientLeasePtr of_client, co_await std::move(named));
    SessionInit init{.principal = caller.principal,
                     .id = id,
                     .spec = snapshot->spec(),
                     .affinity = request.affinity(),
                     .account = caller.account,
                     .request = hash,
                     .lease = std::move(of_client)};
    GDN_CO_RETURN_IF_ERROR(SetLifetimes(parts, request, init));
    GDN_CO_ASSIGN_OR_RETURN(SessionCreation creation, parts.lookup.sessions.Begin(init));
    session = creation.session();
    init.id = session->id();
    if (init.affinity.empty()) init.affinity = init.id;
    Children children;
    children.inits.push_back(std::move(init));
    children.creations.push_back(std::move(creation));
    Task<absl::Status> made = MakeChildren(parts, caller, snapshot, {}, children);
    GDN_CO_RETURN_IF_ERROR(co_await std::move(made));
    session = children.creations.front().session();
    spdlog::info("session created id={} snapshot={}{}", session->id(), request.snapshot(), TraceForLog(caller.trace));
  }
  FillSession(parts.states, *session, response->mutable_session());
  co_return absl::OkStatus();
}

// `id`: the request's, or a random one.
Task<absl::Status> CreateNamed(const SessionParts& parts, const Caller& caller, const std::string& id,
                               const v1::CreateSessionRequest& request, v1::CreateSessionResponse* response) {
  Task<absl::StatusOr<ClientLeasePtr>> named = LeaseNamed(parts, caller, request.lease());
  GDN_CO_ASSIGN_OR_RETURN(ClientLeasePtr of_client, co_await std::move(named));
  GDN_CO_ASSIGN_OR_RETURN(Beginning beginning, BeginSession(parts, caller, id, request, std::move(of_client)));
  SessionCreation& creation = beginning.creation;
  if (creation.pending()) {
    GDN_CO_ASSIGN_OR_RETURN(SessionLease lease,
                            co_await parts.states.residency().Place(std::move(creation.lease()),
                                                                    std::move(beginning.image), caller.deadline));
    creation.Publish();
    lease.Release();
    const Session& session = *creation.session();
    // A session that begins with states may need a checkpoint at once.
    if (parts.states.environment().on_progress) parts.states.environment().on_progress(creation.session());
    const auto layout = parts.states.store().LayoutOf(session.spec().dims);
    const auto layers = static_cast<int64_t>(session.spec().layers.size());
    spdlog::info("session created id={} model={} layers={} state_bytes={}{}", session.id(),
                 session.spec().model.empty() ? "(operator)" : session.spec().model, layers,
                 layout.ok() ? layout->slot_bytes() * layers : 0, TraceForLog(caller.trace));
  }
  FillSession(parts.states, *creation.session(), response->mutable_session());
  co_return absl::OkStatus();
}

}  // namespace

Task<absl::Status> CreateSession(const SessionParts& parts, const Caller& caller,
                                 const v1::CreateSessionRequest& request, v1::CreateSessionResponse* response) {
  const std::string id = IdToMake(parts.lookup, request.session_id());
  Caller brought = caller;
  if (parts.lookup.fleet != nullptr) {
    std::vector<WantedSession> wanted;
    wanted.push_back({.principal = caller.principal, .id = id, .make = true});
    if (!request.snapshot().empty()) wanted.push_back(WantedSnapshot(caller, request.snapshot()));
    co_await BringHere(parts.lookup, brought, std::move(wanted));
  }
  absl::Status created;
  if (brought.not_here != nullptr && brought.not_here->contains(id)) {
    created = brought.not_here->at(id);
  } else if (!request.snapshot().empty()) {
    Task<absl::Status> create = CreateFromSnapshot(parts, brought, id, request, response);
    created = co_await std::move(create);
  } else {
    Task<absl::Status> create = CreateNamed(parts, brought, id, request, response);
    created = co_await std::move(create);
  }
  if (!created.ok()) GiveBackName(parts.lookup, brought.principal, id);
  if (created.ok()) SetLossMark(parts, caller, response);
  co_return created;
}

absl::Status GetSession(const SessionParts& parts, const Caller& caller, const v1::GetSessionRequest& request,
                        v1::GetSessionResponse* response) {
  GDN_ASSIGN_OR_RETURN(const auto session, FindSession(parts.lookup, caller, request.name()));
  FillSession(parts.states, *session, response->mutable_session());
  return absl::OkStatus();
}

absl::Status ListSessions(const SessionParts& parts, const Caller& caller, const v1::ListSessionsRequest& request,
                          v1::ListSessionsResponse* response) {
  if (request.all()) GDN_RETURN_IF_ERROR(CheckAdmin(caller, "listing every caller's sessions (all)"));
  if (request.page_size() < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("page_size is ", request.page_size(), ", expected 0 (default) .. ", kMaxPageSize),
                     {{"field", "page_size"}});
  }
  GDN_ASSIGN_OR_RETURN(const SessionPlace after, ReadPageToken(request));
  const int32_t wanted = request.page_size() == 0 ? kDefaultPageSize : std::min(request.page_size(), kMaxPageSize);
  // One more than the page needs, to know whether there is another page.
  const size_t limit = static_cast<size_t>(wanted) + 1;
  const auto sessions =
      request.all() ? parts.lookup.sessions.ListAll({after.principal, after.id}, limit, /*with_snapshots=*/false)
                    : parts.lookup.sessions.List(caller.principal, after.id, limit);
  if (request.all()) parts.access.owners.LearnListed(*parts.access.authenticator);
  const size_t most = std::min(sessions.size(), static_cast<size_t>(wanted));
  size_t shown = 0;
  for (size_t layers = 0; shown < most; ++shown) {
    layers += sessions[shown]->spec().layers.size();
    if (shown > 0 && layers > kMaxPageLayers) break;
    v1::Session* const out = response->add_sessions();
    FillSession(parts.states, *sessions[shown], out);
    if (request.all()) out->set_owner(parts.access.owners.OwnerOf(sessions[shown]->principal()));
  }
  if (sessions.size() > shown) response->set_next_page_token(WritePageToken(request, *sessions[shown - 1]));
  return absl::OkStatus();
}

Task<absl::Status> DeleteNamed(const SessionParts& parts, const Caller& caller, std::string principal,
                               std::string_view name) {
  GDN_CO_ASSIGN_OR_RETURN(const std::string_view parsed, ParseSessionName(name));
  const std::string id(parsed);
  if (caller.not_here != nullptr) {
    const auto refused = caller.not_here->find(id);
    if (refused != caller.not_here->end()) co_return refused->second;
  }
  Task<absl::Status> deleted = parts.lookup.sessions.Delete(std::move(principal), id);
  GDN_CO_RETURN_IF_ERROR(co_await std::move(deleted));
  spdlog::info("session deleted id={}{}", id, TraceForLog(caller.trace));
  co_return absl::OkStatus();
}

Task<absl::Status> DeleteSession(const SessionParts& parts, const Caller& caller,
                                 const v1::DeleteSessionRequest& request, v1::DeleteSessionResponse* /*response*/) {
  GDN_CO_ASSIGN_OR_RETURN(std::string principal, PrincipalFor(parts.access.owners, caller, request.subject()));
  Task<absl::Status> deleted = DeleteNamed(parts, caller, std::move(principal), request.name());
  co_return co_await std::move(deleted);
}

}  // namespace gdn
