#include "client/cpp/durable_session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/prompt_prefix.h"
#include "client/cpp/reply_epoch.h"
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

void UpdateChoice(Hasher& hasher, const DraftChoice& choice) {
  hasher.UpdateField("accept");
  hasher.UpdateInt(choice.first_tokens);
  for (const int32_t token : choice.path) hasher.UpdateInt(token);
}

void UpdateStep(Hasher& hasher, const SessionStep& stripped) {
  hasher.UpdateInt(static_cast<int64_t>(stripped.index()));
  hasher.UpdateField(std::visit([](const auto& step) { return step.SerializeAsString(); }, stripped));
}

Hash128 IdentityOf(const SessionStep& stripped) {
  Hasher hasher;
  UpdateStep(hasher, stripped);
  return hasher.Finish();
}

Hash128 IdentityOfRow(const RowStep& row) {
  Hasher hasher;
  UpdateStep(hasher, row.alone);
  hasher.UpdateField("row");
  hasher.UpdateInt(static_cast<int64_t>(row.kind));
  if (row.accept_before.has_value()) UpdateChoice(hasher, *row.accept_before);
  return hasher.Finish();
}

Hash128 IdentityOfAccept(const DraftChoice& choice) {
  Hasher hasher;
  UpdateChoice(hasher, choice);
  return hasher.Finish();
}

constexpr std::string_view kNamePrefix = "sessions/";

SeenByLayer SeenOf(const google::protobuf::RepeatedPtrField<v1::LayerState>& layers) {
  SeenByLayer seen;
  for (const v1::LayerState& layer : layers) {
    seen[layer.layer()] = {.tokens = layer.token_count(), .draft = layer.draft_length()};
  }
  return seen;
}

std::string TextOf(const SeenTokens& seen) {
  return StrCat(seen.tokens, " tokens", seen.draft == 0 ? "" : StrCat(" and a draft of ", seen.draft));
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
  Backoff backoff = NewBackoff(options);
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
  Backoff backoff = NewBackoff(options);
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

template <typename Result>
absl::StatusOr<Result> DurableSession::Recovered(Attempt<Result> attempt) {
  Backoff backoff = NewBackoff(options_);
  for (;;) {
    absl::Status status = Prepare(backoff);
    if (status.ok()) {
      absl::StatusOr<Result> result = attempt(backoff);
      if (result.ok()) return result;
      status = result.status();
    }
    if (!TryAgainAfter(status)) return status;
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

absl::Status DurableSession::Begin(CallInFlight call) {
  GDN_RETURN_IF_ERROR(CheckRestored());
  if (!in_flight_.has_value()) {
    in_flight_ = std::move(call);
    return absl::OkStatus();
  }
  if (in_flight_->identity == call.identity) return absl::OkStatus();
  return absl::FailedPreconditionError(
      AbslView(StrCat("the call before on ", name(),
                      " ended without an answer and may have been applied; repeat it before another one")));
}

absl::StatusOr<const LayerSteps*> DurableSession::FindLayer(int32_t index) const {
  const auto found = layers_.find(index);
  if (found != layers_.end()) return &found->second;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayerNotGdn,
                   StrCat(name(), " has no layer ", index, "; expected one of its GDN layers"),
                   {{"session", name()}, {"layer", StrCat(index)}});
}

absl::Status DurableSession::CheckNoDraft(const LayerSteps& layer, std::string_view advice) const {
  if (!layer.draft().has_value() || in_flight_.has_value()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDraftPending,
                   StrCat(name(), " layer ", layer.layer(), " has a draft; ", advice),
                   {{"session", name()}, {"layer", StrCat(layer.layer())}});
}

absl::Status DurableSession::BeginStep(SessionStep request) {
  GDN_ASSIGN_OR_RETURN(const LayerSteps* const layer, FindLayer(StepLayer(request)));
  GDN_RETURN_IF_ERROR(CheckNoDraft(*layer, "AcceptTokens comes first"));
  GDN_RETURN_IF_ERROR(std::visit([](auto& step) { return CheckInMessage(step); }, request));
  Strip(request);
  const Hash128 identity = IdentityOf(request);
  return Begin({.what = std::move(request), .identity = identity});
}

absl::Status DurableSession::BeginRow(RowStep row) {
  GDN_ASSIGN_OR_RETURN(const LayerSteps* const layer, FindLayer(StepLayer(row.alone)));
  Strip(row.alone);
  const Hash128 identity = IdentityOfRow(row);
  std::optional<DraftChoice>& accepted = row.accept_before;
  if (!accepted.has_value()) GDN_RETURN_IF_ERROR(CheckNoDraft(*layer, "set accept_before, or accept it first"));
  if (const auto ahead = accepted_ahead_.find(layer->layer()); accepted.has_value() && ahead != accepted_ahead_.end()) {
    if (*accepted != ahead->second) {
      return absl::FailedPreconditionError(
          AbslView(StrCat(name(), " layer ", layer->layer(), " has accepted ", ahead->second.tokens(),
                          " tokens of its draft with another layer, because the server has no Step; accept the same")));
    }
    accepted.reset();
  }
  if (accepted.has_value() && !in_flight_.has_value()) {
    GDN_RETURN_IF_ERROR(
        CheckChoice(*layer, layer->draft().has_value() ? StepTokens(layer->draft()->request) : 0, *accepted));
  }
  return Begin(
      {.what = std::move(row.alone), .identity = identity, .kind = row.kind, .accept_before = std::move(accepted)});
}

absl::Status DurableSession::CheckChoice(const LayerSteps& layer, int64_t draft_length,
                                         const DraftChoice& choice) const {
  const int32_t accepted_tokens = choice.tokens();
  if (accepted_tokens >= 0 && accepted_tokens <= draft_length) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
      StrCat("accepted_tokens is ", accepted_tokens, ", expected 0 .. ", std::max<int64_t>(draft_length, 0),
             ", the draft of layer ", layer.layer()),
      {{"session", name()}, {"found", StrCat(accepted_tokens)}, {"expected", StrCat("0 .. ", draft_length)}});
}

absl::Status DurableSession::BeginAccept(DraftChoice choice) {
  for (const auto& [index, layer] : layers_) {
    GDN_RETURN_IF_ERROR(
        CheckChoice(layer, layer.draft().has_value() ? StepTokens(layer.draft()->request) : choice.tokens(), choice));
  }
  const Hash128 identity = IdentityOfAccept(choice);
  return Begin({.what = AcceptCall{std::move(choice)}, .identity = identity});
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
  if (WorthAnotherTry(status)) {
    if (in_flight_.has_value() && in_flight_->sent) in_flight_->unanswered = true;
    return true;
  }
  if (MayRefuseForItself(status)) return astray_ = true;
  if (!astray_) in_flight_.reset();
  GiveUp();
  return false;
}

void DurableSession::GiveUp() {
  if (in_flight_.has_value() && !in_flight_->sent) in_flight_.reset();
}

absl::Status DurableSession::FinishStep(const StepResult& result) {
  CallInFlight call = *std::exchange(in_flight_, std::nullopt);
  SessionStep request = std::get<SessionStep>(std::move(call.what));
  LayerSteps& layer = layers_.at(StepLayer(request));
  if (call.accept_before.has_value()) layer.AcceptDraft(*std::move(call.accept_before));
  accepted_ahead_.erase(layer.layer());
  const bool draft = IsDraft(request);
  KeptStep step{.request = std::move(request),
                .before = layer.token_count(),
                .tokens = result.token_count - layer.token_count(),
                .output = result.output};
  const bool odd_row = call.kind.has_value() && !draft && step.tokens != StepTokens(step.request);
  if (step.tokens < 0 || (draft && step.tokens != 0) || odd_row) {
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
  return NoteAccepted(std::get<AcceptCall>(std::exchange(in_flight_, std::nullopt)->what).choice, counts);
}

absl::Status DurableSession::NoteAccepted(const DraftChoice& accepted, const v1::SessionTokenCounts& counts) {
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
  GDN_ASSIGN_OR_RETURN(Reply reply, Recovered<Reply>([this](const Backoff& backoff) {
                         return Send(step(), RequestIdInFlight(), token_count(StepLayer(step())), backoff);
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

absl::StatusOr<v1::StepResponse> DurableSession::Step(v1::StepRequest request) {
  GDN_RETURN_IF_ERROR(CheckInMessage(request));
  GDN_ASSIGN_OR_RETURN(std::vector<RowStep> rows, CutStep(std::move(request)));
  if (rows.size() != 1) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kBatchTooLarge,
                     StrCat("the step has ", rows.size(), " rows, expected 1"),
                     {{"found", StrCat(rows.size())}, {"expected", "1"}});
  }
  GDN_RETURN_IF_ERROR(BeginRow(std::move(rows[0])));
  GDN_ASSIGN_OR_RETURN(Reply reply, Recovered<Reply>([this](const Backoff& backoff) { return SendRow(backoff); }));
  GDN_RETURN_IF_ERROR(FinishStep(reply.result));
  return std::get<v1::StepResponse>(std::move(reply.message));
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::AcceptTokens(int32_t accepted_tokens) {
  return RunAccept({.first_tokens = accepted_tokens});
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::AcceptPath(std::vector<int32_t> path) {
  return RunAccept({.path = std::move(path)});
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::RunAccept(DraftChoice choice) {
  GDN_RETURN_IF_ERROR(BeginAccept(choice));
  GDN_ASSIGN_OR_RETURN(v1::SessionTokenCounts counts, Recovered<v1::SessionTokenCounts>([&](const Backoff& backoff) {
                         return SendAccept(ChoiceToSend(choice), RequestIdInFlight(), backoff);
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
  Backoff backoff = NewBackoff(options_);
  for (;;) {
    absl::Status status = client_.DeleteSession(name(), TryOptions(backoff));
    if (status.ok() || ErrorReason(status) == reason::kSessionNotFound) return absl::OkStatus();
    if (!WorthAnotherTry(status)) return status;
    GDN_RETURN_IF_ERROR(backoff.Wait(status));
    ++stats_.retries;
  }
}

// The part of a DurableSession that sends its steps, under request ids of its own.

DurableSession::DurableSession(Client& client, DurableSessionOptions options)
    : client_(client), options_(options), id_prefix_(RandomId()) {}

Backoff DurableSession::NewBackoff(const DurableSessionOptions& options) {
  return Backoff({.first = options.first_backoff,
                  .longest = options.longest_backoff,
                  .deadline = absl::Now() + options.overall_timeout});
}

std::string DurableSession::NewRequestId() { return StrCat(id_prefix_, "-", next_request_++); }

const std::string& DurableSession::RequestIdInFlight() {
  if (in_flight_->request_id.empty()) in_flight_->request_id = NewRequestId();
  return in_flight_->request_id;
}

CallOptions DurableSession::TryOptions(const Backoff& backoff) const {
  const absl::Duration left = std::max(backoff.deadline() - absl::Now(), absl::Milliseconds(1));
  return {.timeout = std::min(options_.try_timeout, left), .affinity = session_.affinity()};
}

void DurableSession::AddRowTo(v1::DecodeRequest& message, int64_t token_count) const {
  message.add_sessions(name());
  message.add_session_epochs(epoch_);
  message.add_expected_token_counts(token_count);
}

void DurableSession::AddRowTo(v1::StepRequest& message) const {
  const SessionStep& step = std::get<SessionStep>(in_flight_->what);
  const LayerSteps& layer = layers_.at(StepLayer(step));
  v1::StepRow* const row = message.add_rows();
  row->set_session(name());
  row->set_session_epoch(epoch_);
  row->set_token_count(static_cast<int32_t>(StepTokens(step)));
  row->set_kind(*in_flight_->kind);
  if (const auto* const decode = std::get_if<v1::DecodeRequest>(&step)) {
    *row->mutable_draft_parents() = decode->draft_parents();
  }
  int64_t before = layer.token_count();
  if (const auto& accepted = in_flight_->accept_before; accepted.has_value()) {
    if (layer.draft().has_value()) before += accepted->tokens();
    row->mutable_accept_before()->set_accepted_tokens(accepted->first_tokens);
    row->mutable_accept_before()->mutable_path()->Add(accepted->path.begin(), accepted->path.end());
  }
  row->set_expected_token_count(before);
}

void DurableSession::AddRowTo(v1::AcceptTokensRequest& message, const DraftChoice& choice) const {
  v1::DraftAcceptance* const acceptance = message.add_acceptances();
  acceptance->set_session(name());
  acceptance->set_accepted_tokens(choice.first_tokens);
  acceptance->mutable_path()->Add(choice.path.begin(), choice.path.end());
  acceptance->set_session_epoch(epoch_);
}

absl::StatusOr<DurableSession::Reply> DurableSession::Send(SessionStep& request, const std::string& request_id,
                                                           int64_t token_count, const Backoff& backoff) {
  Reply reply;
  if (auto* const prefill = std::get_if<v1::PrefillRequest>(&request)) {
    prefill->set_session(name());
    prefill->set_session_epoch(epoch_);
    prefill->set_expected_token_count(token_count);
    prefill->set_request_id(request_id);
    GDN_ASSIGN_OR_RETURN(v1::PrefillResponse response, client_.Prefill(*prefill, TryOptions(backoff)));
    reply.result = {.token_count = response.token_count(),
                    .durable_token_count = response.durable_token_count(),
                    .output = HashBytes(response.output().data())};
    reply.message = std::move(response);
    return reply;
  }
  v1::DecodeRequest& decode = std::get<v1::DecodeRequest>(request);
  decode.clear_sessions();
  decode.clear_session_epochs();
  decode.clear_expected_token_counts();
  AddRowTo(decode, token_count);
  decode.set_partial_ok(false);
  decode.set_request_id(request_id);
  GDN_ASSIGN_OR_RETURN(v1::DecodeResponse response, client_.Decode(decode, TryOptions(backoff)));
  if (response.token_counts_size() != 1) {
    return MakeError(
        absl::StatusCode::kInternal, reason::kInternal,
        StrCat("a Decode of one session was answered with ", response.token_counts_size(), " token counts"));
  }
  reply.result = {
      .token_count = response.token_counts(0),
      .durable_token_count = response.durable_token_counts_size() == 1 ? response.durable_token_counts(0) : 0,
      .output = HashBytes(response.output().data())};
  reply.message = std::move(response);
  return reply;
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::SendAccept(const DraftChoice& choice,
                                                                  const std::string& request_id,
                                                                  const Backoff& backoff) {
  v1::AcceptTokensRequest request;
  AddRowTo(request, choice);
  request.set_request_id(request_id);
  GDN_ASSIGN_OR_RETURN(v1::AcceptTokensResponse response, client_.AcceptTokens(request, TryOptions(backoff)));
  if (response.counts_size() != 1) {
    return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                     StrCat("AcceptTokens of one session was answered with ", response.counts_size(), " entries"));
  }
  return std::move(*response.mutable_counts(0));
}

absl::StatusOr<DurableSession::Reply> DurableSession::SendRow(const Backoff& backoff) {
  if (client_.StepIsUnimplemented()) return SendRowInParts(backoff);
  v1::StepRequest request = JoinStep({&step()});
  AddRowTo(request);
  request.set_request_id(RequestIdInFlight());
  absl::StatusOr<v1::StepResponse> response = client_.Step(request, TryOptions(backoff));
  if (response.status().code() == absl::StatusCode::kUnimplemented && client_.StepIsUnimplemented()) {
    return SendRowInParts(backoff);
  }
  GDN_RETURN_IF_ERROR(response.status());
  if (response->token_counts_size() != 1 || response->durable_token_counts_size() != 1) {
    return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                     StrCat("a Step of one row was answered with ", response->token_counts_size(), " token counts"));
  }
  const StepResult result = {.token_count = response->token_counts(0),
                             .durable_token_count = response->durable_token_counts(0),
                             .output = HashBytes(response->output().data())};
  return Reply{.message = *std::move(response), .result = result};
}

absl::Status DurableSession::CompareBeforeParts() {
  in_flight_->refusal = reason::kReplyDropped;
  in_flight_->copy_tried = true;
  astray_ = true;
  return absl::UnavailableError("a Step without an answer must be looked for on a server that does not know Step");
}

absl::StatusOr<DurableSession::Reply> DurableSession::SendRowInParts(const Backoff& backoff) {
  CallInFlight& call = *in_flight_;
  if (call.kind.has_value() && call.unanswered) return CompareBeforeParts();
  if (std::exchange(call.kind, std::nullopt).has_value()) {
    call.request_id.clear();  // it was a Step's
    const std::optional<DraftChoice> accepted = std::exchange(call.accept_before, std::nullopt);
    // Without a draft in this layer there is nothing to accept, and AcceptTokens would drop the other layers' drafts.
    if (accepted.has_value() && layers_.at(StepLayer(step())).draft().has_value()) {
      call.next = std::get<SessionStep>(std::move(call.what));
      call.what = AcceptCall{*accepted};
    }
  }
  if (const auto* const accept = std::get_if<AcceptCall>(&call.what)) {
    const DraftChoice choice = accept->choice;
    GDN_ASSIGN_OR_RETURN(const v1::SessionTokenCounts counts,
                         SendAccept(ChoiceToSend(choice), RequestIdInFlight(), backoff));
    for (const auto& [index, layer] : layers_) {
      if (layer.draft().has_value()) accepted_ahead_.insert_or_assign(index, choice);
    }
    call.what = *std::exchange(call.next, std::nullopt);
    call.request_id.clear();
    GDN_RETURN_IF_ERROR(NoteAccepted(choice, counts));
  }
  GDN_ASSIGN_OR_RETURN(Reply reply, Send(step(), RequestIdInFlight(), token_count(StepLayer(step())), backoff));
  v1::StepResponse row;
  std::visit(
      [&row](auto& message) {
        row.mutable_output()->Swap(message.mutable_output());
        row.set_compute_time_us(message.compute_time_us());
      },
      reply.message);
  if (std::holds_alternative<v1::DecodeResponse>(reply.message) && row.output().shape_size() > 0) {
    row.mutable_output()->mutable_shape()->erase(row.output().shape().begin());  // [1, T, ..]
  }
  if (row.output().shape_size() == 0 || row.output().shape(0) != StepTokens(step())) {
    return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                     StrCat("a step of ", StepTokens(step()), " tokens was answered with another number of outputs"));
  }
  row.add_token_counts(reply.result.token_count);
  row.add_durable_token_counts(reply.result.durable_token_count);
  reply.message = std::move(row);
  return reply;
}

// The part of a DurableSession that uses the state as a whole: checkpoints, exports, forks, restores.
//
// Each request names the epoch, and the client compares what comes back with the token counts that it knows. The server
// may be too old to know the field, or may have gone back to an older state in the same epoch (a restored backup of a
// shared Redis).

absl::Status DurableSession::CheckRestored() const {
  if (!restoring_) return absl::OkStatus();
  return absl::FailedPreconditionError(AbslView(
      StrCat("a restore of ", name(), " ended without an answer and may have been applied; restore it again")));
}

absl::Status DurableSession::CheckIdle(std::string_view call) const {
  GDN_RETURN_IF_ERROR(CheckRestored());
  if (!in_flight_.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      AbslView(StrCat("the call before on ", name(), " ended without an answer; repeat it before ", call)));
}

absl::Status DurableSession::CheckSeen(const SeenByLayer& seen, std::string_view what) const {
  for (const auto& [index, layer] : layers_) {
    const SeenTokens expected = {.tokens = layer.token_count(),
                                 .draft = layer.draft().has_value() ? StepTokens(layer.draft()->request) : 0};
    const auto there = seen.find(index);
    const SeenTokens found = there == seen.end() ? SeenTokens() : there->second;
    if (found == expected) continue;
    return MakeError(absl::StatusCode::kAborted, reason::kTokenCountMismatch,
                     StrCat(what, " has ", TextOf(found), " of layer ", index, ", expected ", TextOf(expected)),
                     {{"session", name()},
                      {"layer", StrCat(index)},
                      {"token_count", StrCat(found.tokens)},
                      {"expected", StrCat(expected.tokens)}});
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Checkpoint> DurableSession::TryCheckpoint(const std::string& checkpoint_id, const Backoff& backoff) {
  v1::CheckpointSessionRequest request;
  request.set_name(name());
  request.set_checkpoint_id(checkpoint_id);
  request.set_session_epoch(epoch_);
  GDN_ASSIGN_OR_RETURN(v1::Checkpoint made, client_.CheckpointSession(request, TryOptions(backoff)));
  GDN_RETURN_IF_ERROR(CheckSeen(SeenOf(made.layers()), StrCat("the checkpoint of ", name())));
  if (!checkpoint_id.empty()) return made;  // a crash does not come back to it, so the inputs are still needed
  for (const v1::LayerState& state : made.layers()) {
    const auto found = layers_.find(state.layer());
    if (found == layers_.end()) continue;
    found->second.Trim(state.token_count());
    checkpointed_counts_[state.layer()] = state.token_count();
  }
  return made;
}

absl::StatusOr<v1::Checkpoint> DurableSession::Checkpoint(const std::string& checkpoint_id) {
  GDN_RETURN_IF_ERROR(CheckIdle("a checkpoint"));
  return Recovered<v1::Checkpoint>([&](const Backoff& backoff) { return TryCheckpoint(checkpoint_id, backoff); });
}

absl::StatusOr<std::string> DurableSession::ExportState(v1::ExportStateRequest request) {
  GDN_RETURN_IF_ERROR(CheckIdle("an export"));
  request.set_name(name());
  return Recovered<std::string>([&](const Backoff& backoff) -> absl::StatusOr<std::string> {
    request.set_session_epoch(epoch_);
    GDN_ASSIGN_OR_RETURN(std::string file, client_.ExportState(request, TryOptions(backoff)));
    GDN_ASSIGN_OR_RETURN(const StateFileOrigin origin, ReadStateFileOrigin(file));
    GDN_RETURN_IF_ERROR(CheckSeen(origin.seen, StrCat("the state file of ", name())));
    return file;
  });
}

absl::StatusOr<std::vector<v1::Session>> DurableSession::TryFork(v1::ForkSessionRequest& request,
                                                                 const std::set<std::string>& drawn,
                                                                 const Backoff& backoff) {
  request.set_session_epoch(epoch_);
  GDN_ASSIGN_OR_RETURN(std::vector<v1::Session> children, client_.ForkSession(request, TryOptions(backoff)));
  if (static_cast<int>(children.size()) != request.session_ids_size()) {
    return MakeError(
        absl::StatusCode::kInternal, reason::kInternal,
        StrCat("a fork into ", request.session_ids_size(), " sessions was answered with ", children.size()));
  }
  absl::Status other;
  for (const v1::Session& child : children) {
    const absl::Status same = CheckSeen(SeenOf(child.layers()), StrCat("the fork ", child.name()));
    if (same.ok()) continue;
    if (!drawn.contains(child.name())) {
      return MakeError(absl::StatusCode::kAlreadyExists, reason::kSessionExists,
                       StrCat(same.message(),
                              ": an earlier fork has made it, or a server that is too old to know "
                              "session_epoch; delete it, or fork under another id"),
                       {{"session", child.name()}});
    }
    other = same;
  }
  if (other.ok()) return children;
  // The children are of the state that a crash left. Its missing steps come back first; the next try forks again.
  for (const std::string& child : drawn) {
    const absl::Status deleted = client_.DeleteSession(child, TryOptions(backoff));
    if (!deleted.ok() && ErrorReason(deleted) != reason::kSessionNotFound) return deleted;
  }
  return other;
}

std::unique_ptr<DurableSession> DurableSession::ChildOf(v1::Session child) const {
  std::unique_ptr<DurableSession> fork(new DurableSession(client_, options_));
  if (create_.has_value()) {
    fork->create_ = create_;
    fork->create_->set_session_id(child.name().substr(kNamePrefix.size()));
    fork->create_->set_affinity(session_.affinity());  // a child has its parent's
  }
  fork->initial_counts_ = initial_counts_;
  fork->prefix_tokens_ = prefix_tokens_;
  fork->layers_ = layers_;
  fork->accepted_ahead_ = accepted_ahead_;
  fork->numerics_id_ = numerics_id_;
  fork->numerics_changed_ = numerics_changed_;
  for (const v1::LayerState& layer : child.layers()) {
    fork->checkpointed_counts_[layer.layer()] = layer.durable_token_count();
  }
  fork->epoch_ = child.epoch();
  fork->session_ = std::move(child);
  return fork;
}

absl::StatusOr<std::vector<std::unique_ptr<DurableSession>>> DurableSession::Fork(std::vector<std::string> ids) {
  GDN_RETURN_IF_ERROR(CheckIdle("a fork"));
  v1::ForkSessionRequest request;
  request.set_name(name());
  std::set<std::string> drawn;
  for (std::string& id : ids) {
    // Drawn here, so that a lost reply does not leave children that nobody knows.
    if (id.empty()) drawn.insert(StrCat(kNamePrefix, id = RandomId()));
    request.add_session_ids(std::move(id));
  }
  GDN_ASSIGN_OR_RETURN(
      std::vector<v1::Session> children,
      Recovered<std::vector<v1::Session>>([&](const Backoff& backoff) { return TryFork(request, drawn, backoff); }));
  std::vector<std::unique_ptr<DurableSession>> forks;
  for (v1::Session& child : children) forks.push_back(ChildOf(std::move(child)));
  return forks;
}

absl::StatusOr<v1::KeepPrefixResponse> DurableSession::KeepPrefix(const v1::PromptPrefix& prefix) {
  GDN_RETURN_IF_ERROR(CheckIdle("a prefix is kept"));
  v1::KeepPrefixRequest request;
  request.set_name(name());
  *request.mutable_prefix() = prefix;
  return Recovered<v1::KeepPrefixResponse>([&](const Backoff& backoff) {
    request.set_session_epoch(epoch_);
    return client_.KeepPrefix(request, TryOptions(backoff));
  });
}

absl::StatusOr<v1::Session> DurableSession::TryRestore(v1::RestoreCheckpointRequest& request, const Backoff& backoff) {
  absl::StatusOr<v1::Session> back = client_.RestoreCheckpoint(request, TryOptions(backoff));
  if (ErrorReason(back.status()) == reason::kEpochMismatch) {
    // After a crash, or a restore whose reply was lost: in both cases the state is given up. This side
    // takes over the epoch only with that state, so that no other call takes what is there for the state it knows.
    const absl::StatusOr<v1::Session> found = client_.GetSession(name(), TryOptions(backoff));
    if (ErrorReason(found.status()) == reason::kSessionNotFound) restoring_ = false;
    GDN_RETURN_IF_ERROR(found.status());
    request.set_session_epoch(found->epoch());
    return absl::UnavailableError("the session is in another epoch");
  }
  // An answer with a reason says that this try was not taken; it says nothing of an earlier one.
  const bool unanswered = WorthAnotherTry(back.status()) && ErrorReason(back.status()).empty();
  restoring_ = restoring_ || back.ok() || unanswered;
  // With the session goes what an earlier try may have done.
  if (ErrorReason(back.status()) == reason::kSessionNotFound) restoring_ = false;
  GDN_RETURN_IF_ERROR(back.status());
  epoch_ = back->epoch();
  request.set_session_epoch(epoch_);
  const absl::Status dropped = DropDrafts(&*back, backoff);
  // By a crash: it has taken the session elsewhere again.
  if (SessionHasMoved(dropped)) return absl::UnavailableError(dropped.message());
  GDN_RETURN_IF_ERROR(dropped);
  return back;
}

absl::StatusOr<v1::Session> DurableSession::Restore(const std::string& checkpoint_id) {
  if (!restoring_) GDN_RETURN_IF_ERROR(CheckIdle("a restore"));
  v1::RestoreCheckpointRequest request;
  request.set_name(name());
  request.set_checkpoint_id(checkpoint_id);
  request.set_session_epoch(epoch_);
  Backoff backoff = NewBackoff(options_);
  GDN_ASSIGN_OR_RETURN(v1::Session restored,
                       Retried(backoff, [&](const CallOptions& /*call*/) { return TryRestore(request, backoff); }));
  restoring_ = false;
  for (const v1::LayerState& state : restored.layers()) {
    const auto found = layers_.find(state.layer());
    if (!checkpoint_id.empty() || found == layers_.end() || state.token_count() >= found->second.begin()) continue;
    astray_ = true;
    return MakeError(absl::StatusCode::kDataLoss, reason::kEpochMismatch,
                     StrCat(name(), " is back at token ", state.token_count(), " of layer ", state.layer(),
                            ", and its newest checkpoint had ", found->second.begin(),
                            ": the server's store was set back. Where the inputs before are at hand, go on with "
                            "DurableSession::Attach; else prefill a new session"),
                     {{"session", name()}, {"layer", StrCat(state.layer())}});
  }
  astray_ = rolled_back_ = needs_replay_ = false;
  accepted_ahead_.clear();
  for (const v1::LayerState& state : restored.layers()) {
    layers_.insert_or_assign(state.layer(), LayerSteps(state.layer(), state.token_count()));
    checkpointed_counts_[state.layer()] = state.token_count();
  }
  return restored;
}

}  // namespace gdn
