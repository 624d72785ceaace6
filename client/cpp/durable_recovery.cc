// The part of a DurableSession that sends its steps, and brings the server's session back where it has lost some.
#include "client/cpp/durable_session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// The same error, with the place where it came up.
absl::Status While(std::string_view doing, const absl::Status& status) {
  return WithPrefix(status, StrCat("while ", doing));
}

absl::Status Lost(std::string_view reason, std::string_view message, const std::string& session, int32_t layer) {
  return MakeError(absl::StatusCode::kDataLoss, reason, message, {{"session", session}, {"layer", StrCat(layer)}});
}

}  // namespace

DurableSession::DurableSession(Client& client, DurableSessionOptions options)
    : client_(client), options_(options), id_prefix_(RandomId()) {}

Backoff DurableSession::NewBackoff() const {
  return Backoff({.first = options_.first_backoff,
                  .longest = options_.longest_backoff,
                  .deadline = absl::Now() + options_.overall_timeout});
}

std::string DurableSession::NewRequestId() { return StrCat(id_prefix_, "-", next_request_++); }

CallOptions DurableSession::TryOptions(const Backoff& backoff) const {
  const absl::Duration left = std::max(backoff.deadline() - absl::Now(), absl::Milliseconds(1));
  return {.timeout = std::min(options_.try_timeout, left), .affinity = session_.affinity()};
}

absl::StatusOr<DurableSession::Reply> DurableSession::Send(StepRequest& request, const std::string& request_id,
                                                           int64_t token_count, const Backoff& backoff) {
  Reply reply;
  if (auto* const prefill = std::get_if<v1::PrefillRequest>(&request)) {
    prefill->set_session(name());
    prefill->set_session_epoch(epoch_);
    prefill->set_expected_token_count(token_count);
    prefill->set_request_id(request_id);
    GDN_ASSIGN_OR_RETURN(v1::PrefillResponse response, client_.Prefill(*prefill, TryOptions(backoff)));
    reply.token_count = response.token_count();
    reply.durable_token_count = response.durable_token_count();
    reply.output = HashBytes(response.output().data());
    reply.message = std::move(response);
    return reply;
  }
  v1::DecodeRequest& decode = std::get<v1::DecodeRequest>(request);
  decode.clear_sessions();
  decode.add_sessions(name());
  decode.clear_session_epochs();
  decode.add_session_epochs(epoch_);
  decode.clear_expected_token_counts();
  decode.add_expected_token_counts(token_count);
  decode.set_partial_ok(false);
  decode.set_request_id(request_id);
  GDN_ASSIGN_OR_RETURN(v1::DecodeResponse response, client_.Decode(decode, TryOptions(backoff)));
  if (response.token_counts_size() != 1) {
    return MakeError(
        absl::StatusCode::kInternal, reason::kInternal,
        StrCat("a Decode of one session was answered with ", response.token_counts_size(), " token counts"));
  }
  reply.token_count = response.token_counts(0);
  reply.durable_token_count = response.durable_token_counts_size() == 1 ? response.durable_token_counts(0) : 0;
  reply.output = HashBytes(response.output().data());
  reply.message = std::move(response);
  return reply;
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::SendAccept(int32_t accepted_tokens,
                                                                  const std::string& request_id,
                                                                  const Backoff& backoff) {
  v1::AcceptTokensRequest request;
  v1::DraftAcceptance* const acceptance = request.add_acceptances();
  acceptance->set_session(name());
  acceptance->set_accepted_tokens(accepted_tokens);
  acceptance->set_session_epoch(epoch_);
  request.set_request_id(request_id);
  GDN_ASSIGN_OR_RETURN(v1::AcceptTokensResponse response, client_.AcceptTokens(request, TryOptions(backoff)));
  if (response.counts_size() != 1) {
    return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                     StrCat("AcceptTokens of one session was answered with ", response.counts_size(), " entries"));
  }
  return std::move(*response.mutable_counts(0));
}

absl::Status DurableSession::Recover(absl::Status cause, Backoff& backoff) {
  const auto* const step = in_flight_.has_value() ? std::get_if<StepRequest>(&in_flight_->what) : nullptr;
  if (step != nullptr && in_flight_->applied && ErrorReason(cause) == reason::kTokenCountMismatch) {
    const LayerSteps& layer = layers_.at(StepLayer(*step));
    return Lost(reason::kTokenCountMismatch,
                StrCat(name(), " layer ", layer.layer(), " has taken the step after token ", layer.token_count(),
                       ", and its reply is no longer stored"),
                name(), layer.layer());
  }
  for (;;) {
    GDN_RETURN_IF_ERROR(backoff.Wait(cause));
    ++stats_.retries;
    cause = RecoverOnce(backoff);
    if (cause.ok()) return cause;
    if (!WorthAnotherTry(cause) && !SessionHasMoved(cause)) return cause;
  }
}

absl::Status DurableSession::RecoverOnce(const Backoff& backoff) {
  bool recreated = false;
  GDN_ASSIGN_OR_RETURN(v1::Session session, FindOrRecreate(&recreated, backoff));
  // Inside a replay the counts are behind by themselves, and only a new epoch tells of another loss.
  if (session.epoch() != epoch_ || recreated || (!needs_replay_ && !IsWhereExpected(session))) {
    NoteLoss(session, recreated);
    needs_replay_ = true;
  }
  if (in_flight_.has_value()) {
    in_flight_->applied = false;
    for (const v1::LayerState& state : session.layers()) {
      const auto layer = layers_.find(state.layer());
      if (layer != layers_.end()) in_flight_->applied |= InFlightIsApplied(layer->second, state.token_count());
    }
  }
  if (!needs_replay_) return absl::OkStatus();

  if (in_flight_.has_value()) {
    // A stored reply tells of a draft that is dropped below, or of an acceptance before it: these begin anew. A step
    // keeps its id, for the server may have applied it, saved it and lost only the reply.
    const auto* const step = std::get_if<StepRequest>(&in_flight_->what);
    if (step == nullptr || IsDraft(*step)) in_flight_->request_id = NewRequestId();
  }
  GDN_RETURN_IF_ERROR(CompareNumerics(backoff));
  GDN_RETURN_IF_ERROR(DropDrafts(&session, backoff));
  GDN_RETURN_IF_ERROR(Replay(session, backoff));
  needs_replay_ = false;
  return absl::OkStatus();
}

absl::StatusOr<v1::Session> DurableSession::FindOrRecreate(bool* recreated, const Backoff& backoff) {
  absl::StatusOr<v1::Session> found = client_.GetSession(name(), TryOptions(backoff));
  if (found.ok() || ErrorReason(found.status()) != reason::kSessionNotFound) return found;
  for (const auto& [index, layer] : layers_) {
    const auto initial = initial_counts_.find(index);
    const bool from_start =
        create_.has_value() && layer.begin() == (initial == initial_counts_.end() ? 0 : initial->second);
    if (from_start) continue;
    return Lost(reason::kSessionNotFound,
                StrCat(name(), " is gone from the server, and of layer ", index, " only the inputs from token ",
                       layer.begin(), " on are kept here; prefill a new session"),
                name(), index);
  }
  // Idempotent: if its reply is lost, too, GetSession finds the session.
  absl::StatusOr<v1::Session> made = client_.CreateSession(*create_, TryOptions(backoff));
  if (!made.ok()) return While(StrCat("making ", name(), " again, as the server has lost it"), made.status());
  *recreated = true;
  return made;
}

bool DurableSession::InFlightIsApplied(const LayerSteps& layer, int64_t token_count) const {
  if (!in_flight_.has_value()) return false;
  int64_t tokens = 0;
  if (const auto* const step = std::get_if<StepRequest>(&in_flight_->what)) {
    if (StepLayer(*step) == layer.layer() && !IsDraft(*step)) tokens = StepTokens(*step);
  } else if (layer.draft().has_value()) {
    tokens = std::get<AcceptCall>(in_flight_->what).accepted_tokens;
  }
  return tokens > 0 && token_count == layer.token_count() + tokens;
}

bool DurableSession::IsWhereExpected(const v1::Session& session) const {
  if (static_cast<size_t>(session.layers_size()) != layers_.size()) return false;
  for (const v1::LayerState& state : session.layers()) {
    const auto found = layers_.find(state.layer());
    if (found == layers_.end()) return false;
    const LayerSteps& layer = found->second;
    const int64_t draft = layer.draft().has_value() ? StepTokens(layer.draft()->request) : 0;
    const bool same_count = state.token_count() == layer.token_count();
    bool expected = same_count && state.draft_length() == draft;
    if (in_flight_.has_value()) {
      const auto* const step = std::get_if<StepRequest>(&in_flight_->what);
      const bool drafts_here = step != nullptr && IsDraft(*step) && StepLayer(*step) == state.layer();
      expected |= state.draft_length() == 0 && InFlightIsApplied(layer, state.token_count());
      expected |= same_count && drafts_here && state.draft_length() == StepTokens(*step);
      expected |= same_count && step == nullptr && state.draft_length() == 0 &&
                  std::get<AcceptCall>(in_flight_->what).accepted_tokens == 0;
    }
    if (!expected) return false;
  }
  return true;
}

void DurableSession::NoteLoss(const v1::Session& session, bool recreated) {
  int64_t lost = 0;
  for (const v1::LayerState& state : session.layers()) {
    const auto found = layers_.find(state.layer());
    if (found != layers_.end()) lost = std::max(lost, found->second.token_count() - state.token_count());
  }
  epoch_ = session.epoch();
  ++stats_.recoveries;
  stats_.recreations += recreated ? 1 : 0;
  stats_.last_lost_tokens = lost;
  stats_.max_lost_tokens = std::max(stats_.max_lost_tokens, lost);
}

absl::Status DurableSession::CompareNumerics(const Backoff& backoff) {
  GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, client_.GetServerInfo(TryOptions(backoff)));
  // For good: what was computed on another server goes on in the state.
  if (info.numerics_id().empty() || info.numerics_id() != numerics_id_) numerics_changed_ = true;
  return absl::OkStatus();
}

absl::Status DurableSession::DropDrafts(v1::Session* session, const Backoff& backoff) {
  const bool any = std::any_of(session->layers().begin(), session->layers().end(),
                               [](const v1::LayerState& state) { return state.draft_length() > 0; });
  if (!any) return absl::OkStatus();
  absl::StatusOr<v1::SessionTokenCounts> counts = SendAccept(0, NewRequestId(), backoff);
  if (!counts.ok()) return While(StrCat("dropping the draft of ", name()), counts.status());
  *session->mutable_layers() = std::move(*counts->mutable_layers());
  return absl::OkStatus();
}

absl::Status DurableSession::Replay(const v1::Session& session, const Backoff& backoff) {
  std::vector<LayerSteps*> drafts;
  for (const v1::LayerState& state : session.layers()) {
    const auto found = layers_.find(state.layer());
    if (found == layers_.end() || InFlightIsApplied(found->second, state.token_count())) continue;
    GDN_RETURN_IF_ERROR(ReplayLayer(found->second, state.token_count(), backoff));
    if (found->second.draft().has_value()) drafts.push_back(&found->second);
  }
  // Drafts come last, as accepting one in a replay accepts or drops those of all layers.
  const auto* const accept = in_flight_.has_value() ? std::get_if<AcceptCall>(&in_flight_->what) : nullptr;
  if (accept != nullptr && accept->accepted_tokens == 0) return absl::OkStatus();
  for (LayerSteps* const layer : drafts) GDN_RETURN_IF_ERROR(ReplayStep(*layer->draft(), backoff));
  return absl::OkStatus();
}

absl::Status DurableSession::ReplayLayer(LayerSteps& layer, int64_t token_count, const Backoff& backoff) {
  const std::optional<size_t> first = layer.StepAt(token_count);
  if (!first.has_value()) {
    const std::string where =
        StrCat("the server's ", name(), " has seen ", token_count, " tokens of layer ", layer.layer(), ", and ");
    if (token_count < layer.begin()) {
      return Lost(reason::kEpochMismatch,
                  StrCat(where, "the inputs are kept from token ", layer.begin(),
                         " on: it came back from an older copy than it had said to be durable"),
                  name(), layer.layer());
    }
    return Lost(reason::kTokenCountMismatch,
                StrCat(where,
                       token_count > layer.token_count() ? StrCat("only ", layer.token_count(), " were sent from here")
                                                         : std::string("no step of here ended there"),
                       ": somebody else has moved it; prefill a new session"),
                name(), layer.layer());
  }
  for (size_t i = *first; i < layer.steps().size(); ++i) GDN_RETURN_IF_ERROR(ReplayStep(layer.steps()[i], backoff));
  return absl::OkStatus();
}

absl::Status DurableSession::ReplayStep(KeptStep& step, const Backoff& backoff) {
  const int32_t layer = StepLayer(step.request);
  const bool draft = IsDraft(step.request);
  const std::string doing = StrCat("replaying the step of layer ", layer, " after token ", step.before, " of ", name());
  absl::StatusOr<Reply> reply = Send(step.request, NewRequestId(), step.before, backoff);
  if (!reply.ok()) return While(doing, reply.status());
  int64_t count = reply->token_count;
  if (draft && step.tokens > 0) {
    const auto counts = SendAccept(static_cast<int32_t>(step.tokens), NewRequestId(), backoff);
    if (!counts.ok()) return While(doing, counts.status());
    for (const v1::LayerState& state : counts->layers()) {
      if (state.layer() == layer) count = state.token_count();
    }
  }
  const bool same_bytes = reply->output == step.output;
  if (count != step.after() || (!same_bytes && !numerics_changed_)) {
    return While(doing, MakeError(absl::StatusCode::kInternal, reason::kInternal,
                                  same_bytes ? StrCat("the layer has seen ", count, " tokens, expected ", step.after())
                                             : std::string("replay differed: the output has other bytes than at first"),
                                  {{"session", name()}, {"layer", StrCat(layer)}}));
  }
  ++stats_.replayed_steps;
  stats_.replayed_tokens += draft ? StepTokens(step.request) : step.tokens;
  return absl::OkStatus();
}

}  // namespace gdn
