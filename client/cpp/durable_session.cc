#include "client/cpp/durable_session.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/prompt_prefix.h"
#include "client/cpp/step_rows.h"

namespace gdn {
namespace {

// Leaves what the caller asked for, without what this side fills in.
void Strip(SessionStep& request) {
  std::visit(
      [](auto& step) {
        step.clear_request_id();
        if constexpr (std::is_same_v<std::decay_t<decltype(step)>, v1::PrefillRequest>) {
          step.clear_session();
          step.clear_session_epoch();
          step.clear_expected_token_count();
        } else {
          step.clear_sessions();
          step.clear_session_epochs();
          step.clear_expected_token_counts();
          step.clear_partial_ok();
        }
      },
      request);
}

Hash128 IdentityOf(const SessionStep& stripped) {
  Hasher hasher;
  hasher.UpdateInt(static_cast<int64_t>(stripped.index()));
  hasher.UpdateField(std::visit([](const auto& step) { return step.SerializeAsString(); }, stripped));
  return hasher.Finish();
}

Hash128 IdentityOfAccept(const DraftChoice& choice) {
  Hasher hasher;
  hasher.UpdateField("accept");
  hasher.UpdateInt(choice.first_tokens);
  for (const int32_t token : choice.path) hasher.UpdateInt(token);
  return hasher.Finish();
}

absl::Status NoSuchLayer(const std::string& session, int32_t layer) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayerNotGdn,
                   StrCat(session, " has no layer ", layer, "; expected one of its GDN layers"),
                   {{"session", session}, {"layer", StrCat(layer)}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<DurableSession>> DurableSession::Create(Client& client, v1::CreateSessionRequest request,
                                                                       DurableSessionOptions options) {
  // Chosen here, so that a lost reply does not leave a session that nobody knows.
  if (request.session_id().empty()) request.set_session_id(RandomId());
  std::unique_ptr<DurableSession> session(new DurableSession(client, options));
  for (const v1::InitialState& state : request.initial_states()) {
    session->initial_counts_[state.layer()] = state.token_count();
  }
  Backoff backoff = session->NewBackoff();
  session->session_.set_affinity(request.affinity().empty() ? request.session_id() : request.affinity());
  GDN_ASSIGN_OR_RETURN(v1::Session made, session->Retried(backoff, [&](const CallOptions& call) {
    return client.CreateSession(request, call);
  }));
  if (request.has_prefix()) {
    // What is behind the prefix is kept here: made anew, it must not begin further on.
    *request.mutable_prefix() = FirstSegments(request.prefix(), made.prefix_tokens());
    if (made.prefix_tokens() == 0) request.clear_prefix();
    for (const v1::LayerState& layer : made.layers()) session->initial_counts_[layer.layer()] = made.prefix_tokens();
  }
  session->prefix_tokens_ = made.prefix_tokens();
  session->create_ = std::move(request);
  GDN_RETURN_IF_ERROR(session->Adopt(std::move(made), backoff));
  return session;
}

absl::StatusOr<std::unique_ptr<DurableSession>> DurableSession::Attach(Client& client, const std::string& name,
                                                                       DurableSessionOptions options) {
  std::unique_ptr<DurableSession> session(new DurableSession(client, options));
  // What the server takes for one that has none; of another, the first call may be another server's to answer.
  session->session_.set_affinity(name.substr(name.find('/') + 1));
  Backoff backoff = session->NewBackoff();
  GDN_ASSIGN_OR_RETURN(v1::Session found, session->Retried(backoff, [&](const CallOptions& call) {
    return client.GetSession(name, call);
  }));
  GDN_RETURN_IF_ERROR(session->Adopt(std::move(found), backoff));
  return session;
}

template <typename Call>
auto DurableSession::Retried(Backoff& backoff, const Call& call) -> decltype(call(CallOptions())) {
  for (;;) {
    auto result = call(TryOptions(backoff));
    if (result.ok() || !WorthAnotherTry(result.status())) return result;
    GDN_RETURN_IF_ERROR(backoff.Wait(result.status()));
    ++stats_.retries;
  }
}

absl::Status DurableSession::Recovered(Backoff& backoff, absl::FunctionRef<absl::Status()> call) {
  for (;;) {
    absl::Status status = Prepare(backoff);
    if (status.ok()) status = call();
    if (status.ok() || !TryAgainAfter(status)) return status;
    if (status = backoff.Wait(status); !status.ok()) {
      GiveUp();
      return status;
    }
    ++stats_.retries;
  }
}

absl::Status DurableSession::Adopt(v1::Session session, Backoff& backoff) {
  session_ = std::move(session);  // behind a router, the server that has it is to answer
  GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info,
                       Retried(backoff, [this](const CallOptions& call) { return client_.GetServerInfo(call); }));
  numerics_id_ = info.numerics_id();
  epoch_ = session_.epoch();
  for (const v1::LayerState& layer : session_.layers()) {
    if (layer.draft_length() > 0) {
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDraftPending,
                       StrCat(session_.name(), " layer ", layer.layer(), " has a draft of ", layer.draft_length(),
                              " tokens; accept or drop it first, as its inputs are not known here"),
                       {{"session", session_.name()},
                        {"layer", StrCat(layer.layer())},
                        {"draft_length", StrCat(layer.draft_length())}});
    }
    layers_.emplace(layer.layer(), LayerSteps(layer.layer(), layer.token_count()));
    checkpointed_counts_[layer.layer()] = layer.durable_token_count();
  }
  return absl::OkStatus();
}

int64_t DurableSession::token_count(int32_t layer) const {
  const auto found = layers_.find(layer);
  return found == layers_.end() ? -1 : found->second.token_count();
}

int64_t DurableSession::kept_bytes() const {
  int64_t bytes = 0;
  for (const auto& [layer, steps] : layers_) bytes += steps.bytes();
  return bytes;
}

absl::Status DurableSession::Begin(std::variant<SessionStep, AcceptCall> what, Hash128 identity) {
  GDN_RETURN_IF_ERROR(CheckRestored());
  if (!in_flight_.has_value()) {
    in_flight_ = {.what = std::move(what), .identity = identity};
    return absl::OkStatus();
  }
  if (in_flight_->identity == identity) return absl::OkStatus();
  return absl::FailedPreconditionError(
      AbslView(StrCat("the call before on ", name(),
                      " ended without an answer and may have been applied; repeat it before another one")));
}

absl::Status DurableSession::BeginStep(SessionStep request) {
  const int32_t index = StepLayer(request);
  const auto found = layers_.find(index);
  if (found == layers_.end()) return NoSuchLayer(name(), index);
  if (found->second.draft().has_value() && !in_flight_.has_value()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDraftPending,
                     StrCat(name(), " layer ", index, " has a draft; AcceptTokens comes first"),
                     {{"session", name()}, {"layer", StrCat(index)}});
  }
  GDN_RETURN_IF_ERROR(CheckInMessage(request));
  Strip(request);
  const Hash128 identity = IdentityOf(request);
  return Begin(std::move(request), identity);
}

absl::Status DurableSession::BeginAccept(DraftChoice choice) {
  const int32_t accepted_tokens = choice.tokens();
  for (auto& [index, layer] : layers_) {
    const int64_t draft = layer.draft().has_value() ? StepTokens(layer.draft()->request) : accepted_tokens;
    if (accepted_tokens >= 0 && accepted_tokens <= draft) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                     StrCat("accepted_tokens is ", accepted_tokens, ", expected 0 .. ", std::max<int64_t>(draft, 0),
                            ", the draft of layer ", index),
                     {{"session", name()}, {"found", StrCat(accepted_tokens)}, {"expected", StrCat("0 .. ", draft)}});
  }
  const Hash128 identity = IdentityOfAccept(choice);
  return Begin(AcceptCall{std::move(choice)}, identity);
}

absl::Status DurableSession::Prepare(const Backoff& backoff) {
  if (astray_) GDN_RETURN_IF_ERROR(Recover(backoff));
  if (!in_flight_.has_value()) return absl::OkStatus();
  if (!in_flight_->sent) GDN_RETURN_IF_ERROR(KeepWithinLimits(backoff));
  in_flight_->sent = true;
  in_flight_->refusal.clear();
  return absl::OkStatus();
}

bool DurableSession::TryAgainAfter(const absl::Status& status) {
  if (SessionHasMoved(status)) {
    const std::string reason = ErrorReason(status);
    rolled_back_ |= reason == reason::kStateRolledBack || reason == reason::kStateLost;
    // What a recovery meets says nothing of the call.
    if (!std::exchange(astray_, true) && in_flight_.has_value()) in_flight_->refusal = reason;
    return true;
  }
  if (WorthAnotherTry(status)) return true;
  if (!astray_) in_flight_.reset();
  GiveUp();
  return false;
}

void DurableSession::GiveUp() {
  if (in_flight_.has_value() && !in_flight_->sent) in_flight_.reset();
}

absl::Status DurableSession::FinishStep(const StepResult& result) {
  SessionStep request = std::get<SessionStep>(std::move(std::exchange(in_flight_, std::nullopt)->what));
  LayerSteps& layer = layers_.at(StepLayer(request));
  const bool draft = IsDraft(request);
  KeptStep step{.request = std::move(request),
                .before = layer.token_count(),
                .tokens = result.token_count - layer.token_count(),
                .output = result.output};
  if (step.tokens < 0 || (draft && step.tokens != 0)) {
    return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                     StrCat(name(), " layer ", layer.layer(), " had seen ", step.before, " tokens before the step and ",
                            result.token_count, " after it"));
  }
  if (draft) {
    if (StepTokens(step.request) > 0) layer.AddDraft(std::move(step));
  } else {
    layer.Add(std::move(step));
  }
  layer.Trim(result.durable_token_count);
  return absl::OkStatus();
}

absl::Status DurableSession::FinishAccept(const v1::SessionTokenCounts& counts) {
  const DraftChoice accepted = std::get<AcceptCall>(std::exchange(in_flight_, std::nullopt)->what).choice;
  for (const v1::LayerState& state : counts.layers()) {
    const auto found = layers_.find(state.layer());
    if (found == layers_.end()) continue;
    found->second.AcceptDraft(accepted);
    if (found->second.token_count() != state.token_count()) {
      return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                       StrCat(name(), " layer ", state.layer(), " has seen ", state.token_count(),
                              " tokens after AcceptTokens, expected ", found->second.token_count()));
    }
    found->second.Trim(state.durable_token_count());
  }
  return absl::OkStatus();
}

absl::StatusOr<DurableSession::Reply> DurableSession::RunStep(SessionStep request) {
  GDN_RETURN_IF_ERROR(BeginStep(std::move(request)));
  Backoff backoff = NewBackoff();
  Reply reply;
  GDN_RETURN_IF_ERROR(Recovered(backoff, [&]() -> absl::Status {
    GDN_ASSIGN_OR_RETURN(reply, Send(step(), RequestIdInFlight(), token_count(StepLayer(step())), backoff));
    return absl::OkStatus();
  }));
  GDN_RETURN_IF_ERROR(FinishStep(reply.result));
  return reply;
}

absl::StatusOr<v1::PrefillResponse> DurableSession::Prefill(v1::PrefillRequest request) {
  GDN_ASSIGN_OR_RETURN(Reply reply, RunStep(std::move(request)));
  return std::get<v1::PrefillResponse>(std::move(reply.message));
}

absl::StatusOr<v1::DecodeResponse> DurableSession::Decode(v1::DecodeRequest request) {
  GDN_ASSIGN_OR_RETURN(Reply reply, RunStep(std::move(request)));
  return std::get<v1::DecodeResponse>(std::move(reply.message));
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::AcceptTokens(int32_t accepted_tokens) {
  return RunAccept({.first_tokens = accepted_tokens});
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::AcceptPath(std::vector<int32_t> path) {
  return RunAccept({.path = std::move(path)});
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::RunAccept(DraftChoice choice) {
  GDN_RETURN_IF_ERROR(BeginAccept(choice));
  Backoff backoff = NewBackoff();
  v1::SessionTokenCounts counts;
  GDN_RETURN_IF_ERROR(Recovered(backoff, [&]() -> absl::Status {
    GDN_ASSIGN_OR_RETURN(counts, SendAccept(choice, RequestIdInFlight(), backoff));
    return absl::OkStatus();
  }));
  GDN_RETURN_IF_ERROR(FinishAccept(counts));
  return counts;
}

absl::Status DurableSession::KeepWithinLimits(const Backoff& backoff) {
  const int64_t kept = kept_bytes();
  bool due = kept > options_.max_kept_bytes;
  for (auto& [index, layer] : layers_) {
    due |= options_.checkpoint_every_tokens > 0 &&
           layer.token_count() - checkpointed_counts_[index] >= options_.checkpoint_every_tokens;
  }
  if (!due) return absl::OkStatus();
  absl::Status status = TryCheckpoint("", backoff).status();
  if (WorthAnotherTry(status) || SessionHasMoved(status)) return status;
  if (kept <= options_.max_kept_bytes || (status.ok() && kept_bytes() <= options_.max_kept_bytes)) return status;
  return MakeError(
      absl::StatusCode::kResourceExhausted, status.ok() ? std::string(reason::kDraftPending) : ErrorReason(status),
      StrCat("the inputs kept for a replay of ", name(), " have ", kept, " bytes, the limit is ",
             options_.max_kept_bytes, ", and a checkpoint did not free them",
             status.ok()
                 ? "; accept the draft, or raise max_kept_bytes"
                 : StrCat(": ", status.message(), "; start the server with --disk-dir, or raise max_kept_bytes")),
      {{"session", name()}});
}

absl::Status DurableSession::Delete() {
  Backoff backoff = NewBackoff();
  for (;;) {
    absl::Status status = client_.DeleteSession(name(), TryOptions(backoff));
    if (status.ok() || ErrorReason(status) == reason::kSessionNotFound) return absl::OkStatus();
    if (!WorthAnotherTry(status)) return status;
    GDN_RETURN_IF_ERROR(backoff.Wait(status));
    ++stats_.retries;
  }
}

}  // namespace gdn
