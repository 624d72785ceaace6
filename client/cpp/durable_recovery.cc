// The part of a DurableSession that brings the server's session back where it has lost some steps.
#include "client/cpp/durable_session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
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

absl::Status DurableSession::Recover(const Backoff& backoff) {
  bool recreated = false;
  GDN_ASSIGN_OR_RETURN(v1::Session session, FindOrRecreate(&recreated, backoff));
  rolled_back_ = false;
  KeepAppliedAcceptance(session);
  // Inside a replay the counts are behind by themselves, and only a new epoch tells of another loss.
  if (session.epoch() != epoch_ || recreated || (!needs_replay_ && !IsWhereExpected(session))) {
    NoteLoss(session);
    needs_replay_ = true;
  }
  if (in_flight_.has_value()) {
    in_flight_->applied = InFlightIsAppliedIn(session);
    if (ReplyIsGone()) GDN_RETURN_IF_ERROR(Rewind(&session, backoff));
    // Under its id the server would refuse it for good; it moves nothing, so it can be taken again as a new call.
    if (StepWithoutTokensIsGone()) in_flight_->request_id.clear();
  }
  if (needs_replay_) {
    if (in_flight_.has_value()) {
      // A stored reply tells of a draft that is dropped below, or of an acceptance before it: these begin anew. A step
      // keeps its id, for the server may have applied it, saved it and lost only the reply.
      const auto* const step = std::get_if<SessionStep>(&in_flight_->what);
      if (step == nullptr || IsDraft(*step)) in_flight_->request_id.clear();
    }
    GDN_RETURN_IF_ERROR(CompareNumerics(backoff));
    GDN_RETURN_IF_ERROR(DropDrafts(&session, backoff));
    GDN_RETURN_IF_ERROR(Replay(session, backoff));
  }
  if (in_flight_.has_value()) {
    in_flight_->unanswered = false;
    in_flight_->accepted = AcceptanceIsApplied(session);
    if (in_flight_->accepted) in_flight_->request_id.clear();
  }
  needs_replay_ = astray_ = false;
  return absl::OkStatus();
}

bool DurableSession::AcceptanceIsApplied(const v1::Session& session) const {
  if (!in_flight_.has_value() || !std::holds_alternative<AcceptCall>(in_flight_->what)) return false;
  bool any = false;
  for (const v1::LayerState& state : session.layers()) {
    const auto layer = layers_.find(state.layer());
    if (layer == layers_.end() || !layer->second.draft().has_value()) continue;
    if (!InFlightIsApplied(layer->second, state.token_count())) return false;
    any = true;
  }
  return any;
}

DraftChoice DurableSession::ChoiceToSend(const DraftChoice& choice) const {
  return in_flight_->accepted ? DraftChoice() : choice;
}

bool DurableSession::MayRefuseForItself(const absl::Status& status) const {
  if (!in_flight_.has_value() || astray_ || !in_flight_->unanswered) return false;
  if (!std::holds_alternative<AcceptCall>(in_flight_->what) && !in_flight_->accept_before.has_value()) return false;
  // The server compares the accepted tokens with the draft, which is then gone, or the row's own.
  const std::string reason = ErrorReason(status);
  return reason == reason::kTooManyTokens || reason == reason::kValueOutOfRange;
}

const LayerSteps* DurableSession::NotKeptFromStart() const {
  for (const auto& [index, layer] : layers_) {
    const auto initial = initial_counts_.find(index);
    const int64_t start = initial == initial_counts_.end() ? 0 : initial->second;
    if (!create_.has_value() || layer.begin() != start) return &layer;
  }
  return nullptr;
}

absl::StatusOr<v1::Session> DurableSession::FindOrRecreate(bool* recreated, const Backoff& backoff) {
  absl::StatusOr<v1::Session> found = client_.GetSession(name(), TryOptions(backoff));
  // With another epoch it has been brought back already, and that reply was lost.
  if (found.ok() && rolled_back_ && found->epoch() == epoch_) return GoOnFromStore(recreated, backoff);
  if (found.ok() || ErrorReason(found.status()) != reason::kSessionNotFound) return found;
  if (const LayerSteps* const layer = NotKeptFromStart(); layer != nullptr) {
    return Lost(reason::kSessionNotFound,
                StrCat(name(), " is gone from the server, and of layer ", layer->layer(),
                       " only the inputs from token ", layer->begin(), " on are kept here; prefill a new session"),
                name(), layer->layer());
  }
  *recreated = true;
  return Recreate(backoff);
}

absl::StatusOr<v1::Session> DurableSession::Recreate(const Backoff& backoff) {
  // Idempotent: if its reply is lost, too, GetSession finds the session.
  absl::StatusOr<v1::Session> made = client_.CreateSession(*create_, TryOptions(backoff));
  if (!made.ok()) return While(StrCat("making ", name(), " again"), made.status());
  if (made->prefix_tokens() != prefix_tokens_) {
    static_cast<void>(client_.DeleteSession(name(), TryOptions(backoff)));
    return Lost(reason::kSessionNotFound, StrCat(name(), " and its prefix are gone"), name(), layers_.begin()->first);
  }
  ++stats_.recreations;
  return made;
}

absl::StatusOr<v1::Session> DurableSession::GoOnFromStore(bool* recreated, const Backoff& backoff) {
  v1::RestoreCheckpointRequest request;
  request.set_name(name());
  request.set_session_epoch(epoch_);
  absl::StatusOr<v1::Session> restored = client_.RestoreCheckpoint(request, TryOptions(backoff));
  if (restored.ok()) return restored;
  const std::string reason = ErrorReason(restored.status());
  if (reason != reason::kCheckpointNotFound && reason != reason::kNoDurableTier && reason != reason::kStateLost) {
    return While(StrCat("going on from what the server's store has of ", name()), restored.status());
  }
  const auto lost = [this](const std::string& obstacle) {
    return Lost(reason::kCheckpointNotFound,
                StrCat("the server has lost the state of ", name(), ", no durable copy of it is left, and ", obstacle,
                       "; restore a named checkpoint where there is one, else prefill a new session"),
                name(), layers_.begin()->first);
  };
  *recreated = true;
  return BeginAnew(lost, backoff);
}

bool DurableSession::ReplyIsGone() const {
  const auto* const step = std::get_if<SessionStep>(&in_flight_->what);
  if (step == nullptr) return false;
  const std::string& refusal = in_flight_->refusal;
  // The id is looked at first: where it is the count or a draft that is refused, the server has forgotten the id.
  if (IsDraft(*step)) {
    return refusal == reason::kReplyDropped || refusal == reason::kDraftPending ||
           (in_flight_->accept_before.has_value() && refusal == reason::kTokenCountMismatch);
  }
  return in_flight_->applied && (refusal == reason::kReplyDropped || refusal == reason::kTokenCountMismatch);
}

bool DurableSession::StepWithoutTokensIsGone() const {
  const auto* const step = std::get_if<SessionStep>(&in_flight_->what);
  return step != nullptr && StepTokens(*step) == 0 && in_flight_->refusal == reason::kReplyDropped;
}

absl::Status DurableSession::Rewind(v1::Session* session, const Backoff& backoff) {
  if (!IsDraft(step())) {  // a draft is no part of the state yet: it is dropped with the others
    GDN_ASSIGN_OR_RETURN(std::optional<v1::Session> back, RestoreDurableCopy(*session, backoff));
    if (!back.has_value()) {
      const auto lost = [&](const std::string& obstacle) {
        const LayerSteps& layer = layers_.at(StepLayer(step()));
        return Lost(
            reason::kReplyDropped,
            StrCat(name(), " layer ", layer.layer(), " has taken the step after token ", layer.token_count(),
                   ", its reply is no longer stored, and there is no way back to before it: ",
                   session->has_durable_time() ? "the durable copy has the step in it" : "there is no durable copy",
                   ", and ", obstacle,
                   ". Where the output is not needed, go on with DurableSession::Attach; else prefill a new session. "
                   "A larger --stored-reply-bytes keeps replies longer"),
            name(), layer.layer());
      };
      GDN_ASSIGN_OR_RETURN(back, BeginAnew(lost, backoff));
    }
    *session = *std::move(back);
    epoch_ = session->epoch();
    in_flight_->applied = in_flight_->copy_tried = InFlightIsAppliedIn(*session);
  }
  in_flight_->refusal.clear();
  needs_replay_ = true;
  ++stats_.rewinds;
  return absl::OkStatus();
}

absl::StatusOr<v1::Session> DurableSession::BeginAnew(absl::FunctionRef<absl::Status(const std::string&)> lost,
                                                      const Backoff& backoff) {
  if (const LayerSteps* const layer = NotKeptFromStart(); layer != nullptr) {
    return lost(StrCat("of layer ", layer->layer(), " only the inputs from token ", layer->begin(), " on are kept"));
  }
  const auto named = client_.ListCheckpoints(name(), TryOptions(backoff));
  // STATE_LOST says that there is no copy at all.
  if (const std::string reason = ErrorReason(named.status());
      !named.ok() && reason != reason::kNoDurableTier && reason != reason::kStateLost) {
    return While(StrCat("looking for named checkpoints of ", name()), named.status());
  }
  if (named.ok() && !named->empty()) return lost("making it anew would delete its named checkpoints");
  const absl::Status deleted = client_.DeleteSession(name(), TryOptions(backoff));
  if (!deleted.ok() && ErrorReason(deleted) != reason::kSessionNotFound) {
    return While(StrCat("going back to the start of ", name()), deleted);
  }
  return Recreate(backoff);
}

absl::StatusOr<std::optional<v1::Session>> DurableSession::RestoreDurableCopy(const v1::Session& session,
                                                                              const Backoff& backoff) {
  if (!session.has_durable_time()) return std::nullopt;
  for (const v1::LayerState& state : session.layers()) {
    const auto layer = layers_.find(state.layer());
    if (layer == layers_.end()) return std::nullopt;
    const int64_t count = state.durable_token_count();
    if (layer->second.StepAt(count).has_value()) continue;
    // A copy that has the step in it may have its reply, too; where it turned out not to, it is of no use again.
    if (in_flight_->copy_tried || !InFlightIsApplied(layer->second, count)) return std::nullopt;
  }
  v1::RestoreCheckpointRequest request;
  request.set_name(name());
  request.set_session_epoch(session.epoch());
  absl::StatusOr<v1::Session> restored = client_.RestoreCheckpoint(request, TryOptions(backoff));
  if (restored.ok()) return *std::move(restored);
  const std::string reason = ErrorReason(restored.status());
  if (reason == reason::kCheckpointNotFound || reason == reason::kNoDurableTier) return std::nullopt;
  return While(StrCat("going back to the durable copy of ", name()), restored.status());
}

bool DurableSession::InFlightIsAppliedIn(const v1::Session& session) const {
  return std::any_of(session.layers().begin(), session.layers().end(), [this](const v1::LayerState& state) {
    const auto layer = layers_.find(state.layer());
    return layer != layers_.end() && InFlightIsApplied(layer->second, state.token_count());
  });
}

const DraftChoice* DurableSession::ChoiceInFlight(const LayerSteps& layer) const {
  if (!in_flight_.has_value()) return nullptr;
  if (const auto* const accept = std::get_if<AcceptCall>(&in_flight_->what)) return &accept->choice;
  const bool here = StepLayer(std::get<SessionStep>(in_flight_->what)) == layer.layer();
  return here && in_flight_->accept_before.has_value() ? &*in_flight_->accept_before : nullptr;
}

void DurableSession::KeepAppliedAcceptance(const v1::Session& session) {
  if (!in_flight_.has_value() || !in_flight_->accept_before.has_value()) return;
  const bool counts = !IsDraft(step()) && StepTokens(step()) > 0;
  if (counts || !InFlightIsAppliedIn(session)) return;
  layers_.at(StepLayer(step())).AcceptDraft(*std::exchange(in_flight_->accept_before, std::nullopt));
  in_flight_->request_id.clear();
}

bool DurableSession::InFlightIsApplied(const LayerSteps& layer, int64_t token_count) const {
  if (!in_flight_.has_value() || !in_flight_->sent) return false;
  const DraftChoice* const choice = ChoiceInFlight(layer);
  int64_t tokens = choice != nullptr && layer.draft().has_value() ? choice->tokens() : 0;
  if (const auto* const step = std::get_if<SessionStep>(&in_flight_->what)) {
    if (StepLayer(*step) == layer.layer() && !IsDraft(*step)) tokens += StepTokens(*step);
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
      const auto* const step = std::get_if<SessionStep>(&in_flight_->what);
      const bool drafts_here = step != nullptr && IsDraft(*step) && StepLayer(*step) == state.layer();
      expected |= state.draft_length() == 0 && InFlightIsApplied(layer, state.token_count());
      expected |= same_count && drafts_here && state.draft_length() == StepTokens(*step);
      const DraftChoice* const choice = ChoiceInFlight(layer);
      expected |= same_count && choice != nullptr && choice->tokens() == 0 && state.draft_length() == 0;
    }
    if (!expected) return false;
  }
  return true;
}

void DurableSession::NoteLoss(const v1::Session& session) {
  int64_t lost = 0;
  for (const v1::LayerState& state : session.layers()) {
    const auto found = layers_.find(state.layer());
    if (found != layers_.end()) lost = std::max(lost, found->second.token_count() - state.token_count());
  }
  epoch_ = session.epoch();
  ++stats_.recoveries;
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
  absl::StatusOr<v1::SessionTokenCounts> counts = SendAccept({}, NewRequestId(), backoff);
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
  for (LayerSteps* const layer : drafts) {
    const DraftChoice* const choice = ChoiceInFlight(*layer);
    if (choice != nullptr && choice->tokens() == 0) continue;  // dropped already
    GDN_RETURN_IF_ERROR(ReplayStep(*layer->draft(), backoff));
  }
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
                         " on: it came back from an older copy than it had said to be durable. Where the inputs before "
                         "are at hand, go on with DurableSession::Attach; else prefill a new session"),
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
  int64_t count = reply->result.token_count;
  if (draft && step.tokens > 0) {
    const auto counts = SendAccept(step.choice, NewRequestId(), backoff);
    if (!counts.ok()) return While(doing, counts.status());
    for (const v1::LayerState& state : counts->layers()) {
      if (state.layer() == layer) count = state.token_count();
    }
  }
  const bool same_bytes = reply->result.output == step.output;
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
