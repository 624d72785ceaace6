// Which steps a session takes: Session::Admit and AdmitAccept.
#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/session/session.h"
#include "server/session/step_lease.h"

namespace gdn {
namespace {

std::string NameOf(const std::string& id) { return StrCat("sessions/", id); }

}  // namespace

absl::Status Session::NotFound() const {
  return MakeError(absl::StatusCode::kNotFound, reason::kSessionNotFound,
                   StrCat("no session named '", NameOf(id()), "'"), {{"session", NameOf(id())}});
}

absl::Status Session::BusyError(int32_t layer) const {
  return MakeError(
      absl::StatusCode::kAborted, reason::kSessionBusy,
      StrCat(NameOf(id()), " layer ", layer, " has another step in flight; wait for it, then send this one again"),
      {{"session", NameOf(id())}, {"layer", StrCat(layer)}});
}

absl::StatusOr<size_t> Session::LayerIndex(int32_t layer) const {
  const std::vector<int32_t>& layers = spec().layers;
  const auto it = std::lower_bound(layers.begin(), layers.end(), layer);
  if (it == layers.end() || *it != layer) {
    const std::string expected = absl::StrJoin(layers, ",");
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayerNotGdn,
                     StrCat("layer ", layer, " is not a Gated DeltaNet layer of ", NameOf(id()), "; it has ", expected),
                     {{"session", NameOf(id())}, {"layer", StrCat(layer)}, {"expected", expected}});
  }
  return static_cast<size_t>(it - layers.begin());
}

absl::Status Session::CheckKind(const StepRequest& request, const Layer& layer) const {
  if (spec().model.empty() && request.kind != InputKind::kDeltaRule) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kInputNeedsModel,
                     StrCat(NameOf(id()), " is an operator session without weights; send delta_rule input, not ",
                            InputKindName(request.kind)),
                     {{"session", NameOf(id())}});
  }
  if (layer.kind != InputKind::kNone && layer.kind != request.kind) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kInputKindMismatch,
                     StrCat(NameOf(id()), " layer ", request.layer, " began with ", InputKindName(layer.kind),
                            " input and cannot take ", InputKindName(request.kind)),
                     {{"session", NameOf(id())},
                      {"layer", StrCat(request.layer)},
                      {"found", std::string(InputKindName(request.kind))},
                      {"expected", std::string(InputKindName(layer.kind))}});
  }
  return absl::OkStatus();
}

absl::Status Session::CheckEpoch(const std::optional<int64_t>& epoch, int64_t token_count) const {
  if (!epoch.has_value() || *epoch == epoch_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted, reason::kEpochMismatch,
                   StrCat(NameOf(id()), " is in epoch ", epoch_, ", the call is of epoch ", *epoch,
                          ": steps that had been answered were lost; send those after token ", token_count, " again"),
                   {{"session", NameOf(id())},
                    {"epoch", StrCat(epoch_)},
                    {"expected", StrCat(*epoch)},
                    {"token_count", StrCat(token_count)}});
}

absl::StatusOr<bool> Session::FindReply(const StepRequest& request, StepReplyCallback& on_joined, Layer& layer,
                                        Admission& admission) {
  if (request.request_id.empty()) return false;
  const bool in_flight = layer.busy && layer.flight_id == request.request_id;
  const bool stored = layer.reply != nullptr && layer.reply->request_id == request.request_id;
  if (!in_flight && !stored) return false;
  if ((in_flight ? layer.flight_payload : layer.reply->payload) != request.payload) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kRequestIdReused,
                     StrCat("request_id '", request.request_id, "' was used for another payload of ", NameOf(id()),
                            " layer ", request.layer, "; use a new id for a new step"),
                     {{"session", NameOf(id())}, {"layer", StrCat(request.layer)}, {"request_id", request.request_id}});
  }
  if (in_flight) {
    layer.joined.push_back(std::move(on_joined));
    admission.joined = true;
  } else {
    admission.stored = layer.reply;
  }
  return true;
}

absl::StatusOr<Admission> Session::Admit(const SessionPin& pin, const StepRequest& request,
                                         StepReplyCallback on_joined) {
  GDN_ASSIGN_OR_RETURN(const size_t index, LayerIndex(request.layer));
  absl::MutexLock lock(&mu_);
  if (deleted_) return NotFound();
  Layer& layer = layers_[index];
  Admission admission;
  GDN_ASSIGN_OR_RETURN(const bool seen, FindReply(request, on_joined, layer, admission));
  if (seen) return admission;
  const int64_t token_count = layer.progress.token_count;
  GDN_RETURN_IF_ERROR(CheckEpoch(request.epoch, token_count));
  if (request.expected_token_count.has_value() && *request.expected_token_count != token_count) {
    return MakeError(absl::StatusCode::kAborted, reason::kTokenCountMismatch,
                     StrCat(NameOf(id()), " layer ", request.layer, " has seen ", token_count,
                            " tokens, the call expected ", *request.expected_token_count),
                     {{"session", NameOf(id())},
                      {"layer", StrCat(request.layer)},
                      {"token_count", StrCat(token_count)},
                      {"expected", StrCat(*request.expected_token_count)}});
  }
  if (layer.busy) return BusyError(request.layer);
  if (layer.progress.draft_length > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDraftPending,
                     StrCat(NameOf(id()), " layer ", request.layer, " has a draft of ", layer.progress.draft_length,
                            " tokens that wait for a verdict; call AcceptTokens first (0 drops them)"),
                     {{"session", NameOf(id())},
                      {"layer", StrCat(request.layer)},
                      {"draft_length", StrCat(layer.progress.draft_length)}});
  }
  GDN_RETURN_IF_ERROR(CheckKind(request, layer));
  if (!request.request_id.empty() && !environment_->TryCharge(request.reply_bytes)) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
        StrCat("stored replies fill their ", environment_->reply_limit(),
               " bytes, so this step's could not be kept for a retry; try again when sessions have ended or "
               "rested, or raise --stored-reply-bytes"),
        {{"needed", StrCat(request.reply_bytes)},
         {"available", StrCat(environment_->reply_limit() - environment_->reply_bytes())}});
  }
  layer.busy = true;
  layer.flight_id = request.request_id;
  layer.flight_payload = request.payload;
  admission.lease.pin_ = pin.Another();
  admission.lease.index_ = index;
  admission.lease.layer_ = &layer;
  admission.lease.before_ = layer.progress;
  admission.lease.kind_ = request.kind;
  if (!request.request_id.empty()) admission.lease.reply_charge_ = request.reply_bytes;
  return admission;
}

absl::StatusOr<std::vector<StepLease>> Session::AdmitAccept(const SessionPin& pin, const AcceptRequest& request) {
  absl::MutexLock lock(&mu_);
  if (deleted_) return NotFound();
  if (!request.request_id.empty() && request.request_id == accept_request_id_) {
    if (request.accepted_tokens == accepted_tokens_) return std::vector<StepLease>();
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kRequestIdReused,
                     StrCat("request_id '", request.request_id, "' accepted ", accepted_tokens_, " tokens of ",
                            NameOf(id()), ", now ", request.accepted_tokens, "; use a new id for a new call"),
                     {{"session", NameOf(id())}, {"request_id", request.request_id}});
  }
  int64_t token_count = layers_.empty() ? 0 : layers_.front().progress.token_count;
  for (const Layer& layer : layers_) token_count = std::min(token_count, layer.progress.token_count);
  GDN_RETURN_IF_ERROR(CheckEpoch(request.epoch, token_count));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (layer.busy) return BusyError(spec().layers[i]);
    const int32_t draft = layer.progress.draft_length;
    if (draft > 0 && request.accepted_tokens > draft) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
          StrCat(NameOf(id()), " layer ", spec().layers[i], " has a draft of ", draft, " tokens, of which ",
                 request.accepted_tokens, " cannot be accepted; expected 0 .. ", draft),
          {{"session", NameOf(id())},
           {"layer", StrCat(spec().layers[i])},
           {"found", StrCat(request.accepted_tokens)},
           {"expected", StrCat(draft)}});
    }
  }
  std::vector<StepLease> leases;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (layer.progress.draft_length == 0) continue;
    layer.busy = true;
    layer.flight_id.clear();
    StepLease& lease = leases.emplace_back();
    lease.pin_ = pin.Another();
    lease.index_ = i;
    lease.layer_ = &layer;
    lease.before_ = layer.progress;
  }
  if (leases.empty() && request.accepted_tokens > 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                     StrCat(NameOf(id()), " has no draft, so ", request.accepted_tokens,
                            " tokens cannot be accepted; send Decode with draft first"),
                     {{"session", NameOf(id())}, {"found", StrCat(request.accepted_tokens)}, {"expected", "0"}});
  }
  return leases;
}

void Session::NoteAccepted(const AcceptRequest& request) {
  if (request.request_id.empty()) return;
  absl::MutexLock lock(&mu_);
  accept_request_id_ = request.request_id;
  accepted_tokens_ = request.accepted_tokens;
  ++changes_;
}

}  // namespace gdn
