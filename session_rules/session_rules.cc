#include "session_rules/session_rules.h"

#include <algorithm>
#include <numeric>

#include "base/count_limits.h"
#include "base/draft_tree.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "session_rules/refusals.h"

namespace gdn {
namespace {

bool IsRetryOf(const StepRequest& request, const KnownStep& step) {
  return !request.request_id.empty() && request.request_id == step.request_id;
}

// OK if the layer's pending draft has the accepted tokens, each of which follows the one before it. The first tokens of
// a chain do.
absl::Status CheckDraft(const SessionFacts& session, const LayerFacts& layer, const Acceptance& request) {
  if (request.accepted_tokens > layer.draft_length) {
    return DraftTooShort(session.id, layer.layer, layer.draft_length, request.accepted_tokens);
  }
  if (request.path.empty() && layer.draft_parents.empty()) return absl::OkStatus();
  const absl::Status status = CheckDraftPath(layer.draft_parents, layer.draft_length, request.tokens());
  return status.ok() ? status : OfDraft(session.id, layer.layer, status);
}

}  // namespace

std::vector<int32_t> Acceptance::tokens() const {
  if (!path.empty()) return path;
  std::vector<int32_t> first(static_cast<size_t>(accepted_tokens));
  std::iota(first.begin(), first.end(), 0);
  return first;
}

absl::Status CheckEpoch(const SessionFacts& session, absl::Span<const LayerFacts> layers,
                        const std::optional<int64_t>& epoch) {
  if (!epoch.has_value() || *epoch == session.epoch) return absl::OkStatus();
  const auto least = std::ranges::min_element(layers, {}, &LayerFacts::token_count);
  return EpochMismatch(session.id, session.epoch, *epoch, least == layers.end() ? 0 : least->token_count);
}

absl::StatusOr<StepAnswer> AnswerStep(const SessionFacts& session, const LayerFacts& layer,
                                      const StepRequest& request) {
  const bool runs = layer.busy && IsRetryOf(request, layer.in_flight);
  if (runs || IsRetryOf(request, layer.stored)) {
    if ((runs ? layer.in_flight : layer.stored).payload != request.payload) {
      return StepIdReused(session.id, layer.layer, request.request_id);
    }
    if (runs) return StepAnswer::kJoin;
    if (!layer.output_dropped) return StepAnswer::kStored;
    return ReplyDropped(session.id, layer.layer, request.request_id, layer.token_count);
  }
  GDN_RETURN_IF_ERROR(CheckEpoch(session, {&layer, 1}, request.epoch));
  const bool accepts = request.accept_before.has_value();
  int64_t token_count = layer.token_count;
  if (accepts && layer.busy) return LayerBusy(session.id, layer.layer);  // the draft is not known yet
  if (accepts && layer.draft_length > 0) {
    GDN_RETURN_IF_ERROR(CheckDraft(session, layer, *request.accept_before));
    token_count += request.accept_before->accepted_tokens;
  }
  if (request.expected_token_count.has_value() && *request.expected_token_count != token_count) {
    return TokenCountMismatch(session.id, layer.layer, token_count, *request.expected_token_count);
  }
  if (layer.busy) return LayerBusy(session.id, layer.layer);
  if (!accepts && layer.draft_length > 0) return DraftPending(session.id, layer.layer, layer.draft_length);
  if (accepts && layer.draft_length == 0 && request.accept_before->accepted_tokens > 0) {
    return NoDraft(session.id, request.accept_before->accepted_tokens);
  }
  if (!session.has_model && request.kind != InputKind::kDeltaRule) return InputNeedsModel(session.id, request.kind);
  if (layer.kind != InputKind::kNone && layer.kind != request.kind) {
    return InputKindMismatch(session.id, layer.layer, request.kind, layer.kind);
  }
  if (request.tokens > kMaxTokenCount - token_count) {
    return TokenCountLimit(session.id, layer.layer, token_count, request.tokens);
  }
  return StepAnswer::kGo;
}

absl::StatusOr<Acceptance> ReadAcceptance(int32_t accepted_tokens, absl::Span<const int32_t> path, int32_t max_draft) {
  if (!path.empty() && accepted_tokens != 0) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, reason::kInvalidLengths,
        StrCat("path is given beside accepted_tokens, which is ", accepted_tokens, "; expected one of the two"),
        {{"field", "path"}});
  }
  const auto length = static_cast<int64_t>(path.size());
  if (length > max_draft) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                     StrCat("path has ", length, " tokens, expected at most ", max_draft),
                     {{"found", StrCat(length)}, {"expected", StrCat("0 .. ", max_draft)}});
  }
  if (accepted_tokens < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                     StrCat("accepted_tokens is ", accepted_tokens, ", expected 0 or more"),
                     {{"found", StrCat(accepted_tokens)}});
  }
  if (path.empty()) return Acceptance{.accepted_tokens = accepted_tokens};
  Acceptance acceptance{.accepted_tokens = static_cast<int32_t>(length)};
  if (!std::ranges::equal(path, acceptance.tokens())) acceptance.path.assign(path.begin(), path.end());
  return acceptance;
}

absl::StatusOr<bool> WasAccepted(const SessionFacts& session, absl::Span<const LayerFacts> layers,
                                 const Acceptance& request) {
  if (!request.request_id.empty() && request.request_id == session.accept_request_id) {
    if (request.accepted_tokens == session.accepted_tokens && session.accepted_path == request.path) return true;
    return AcceptIdReused(session.id, request.request_id, session.accepted_tokens, request.accepted_tokens);
  }
  GDN_RETURN_IF_ERROR(CheckEpoch(session, layers, request.epoch));
  bool drafts = false;
  for (const LayerFacts& layer : layers) {
    if (layer.busy) return LayerBusy(session.id, layer.layer);
    if (layer.draft_length == 0) continue;
    GDN_RETURN_IF_ERROR(CheckDraft(session, layer, request));
    drafts = true;
  }
  if (!drafts && request.accepted_tokens > 0) return NoDraft(session.id, request.accepted_tokens);
  return false;
}

}  // namespace gdn
