#include "session_rules/refusals.h"

#include "base/bounded_text.h"
#include "base/count_limits.h"
#include "base/error.h"
#include "base/name_rules.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

std::string NameOf(const std::string& id) { return StateName(id); }

}  // namespace

absl::Status SessionNotFound(const std::string& id) {
  return MakeError(absl::StatusCode::kNotFound, reason::kSessionNotFound,
                   StrCat("no session named '", NameOf(id), "'; create it first"), {{"session", NameOf(id)}});
}

absl::Status StateLost(const std::string& id, int32_t layer, bool durable, const absl::Status& why) {
  return MakeError(
      absl::StatusCode::kDataLoss, durable ? reason::kStateRolledBack : reason::kStateLost,
      StrCat(NameOf(id), " layer ", layer, ": a step failed after it had begun to change the state (",
             std::string(why.message()), "), which is lost. ",
             durable ? "Call RestoreCheckpoint, which goes on from the newest durable copy, and send the inputs since "
                       "then again"
                     : "There is no durable copy: delete the session, make it anew and send all of its inputs again"),
      {{"session", NameOf(id)}, {"layer", StrCat(layer)}});
}

absl::Status LayerNotGdn(const std::string& id, int32_t layer, const std::vector<int32_t>& layers) {
  const std::string expected = NumberRanges(layers, kMostListBytes);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayerNotGdn,
                   StrCat("layer ", layer, " is not a Gated DeltaNet layer of ", NameOf(id), "; it has ", expected),
                   {{"session", NameOf(id)}, {"layer", StrCat(layer)}, {"expected", expected}});
}

absl::Status LayerBusy(const std::string& id, int32_t layer) {
  return MakeError(
      absl::StatusCode::kAborted, reason::kSessionBusy,
      StrCat(NameOf(id), " layer ", layer, " has another step in flight; wait for it, then send this one again"),
      {{"session", NameOf(id)}, {"layer", StrCat(layer)}});
}

absl::Status InputNeedsModel(const std::string& id, InputKind found) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kInputNeedsModel,
      StrCat(NameOf(id), " is an operator session without weights; send delta_rule input, not ", InputKindName(found)),
      {{"session", NameOf(id)}});
}

absl::Status InputKindMismatch(const std::string& id, int32_t layer, InputKind found, InputKind expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kInputKindMismatch,
                   StrCat(NameOf(id), " layer ", layer, " began with ", InputKindName(expected),
                          " input and cannot take ", InputKindName(found)),
                   {{"session", NameOf(id)},
                    {"layer", StrCat(layer)},
                    {"found", std::string(InputKindName(found))},
                    {"expected", std::string(InputKindName(expected))}});
}

absl::Status EpochMismatch(const std::string& id, int64_t epoch, int64_t expected, int64_t token_count) {
  return MakeError(absl::StatusCode::kAborted, reason::kEpochMismatch,
                   StrCat(NameOf(id), " is in epoch ", epoch, ", the call is of epoch ", expected,
                          ": steps that had been answered were lost; send those after token ", token_count, " again"),
                   {{"session", NameOf(id)},
                    {"epoch", StrCat(epoch)},
                    {"expected", StrCat(expected)},
                    {"token_count", StrCat(token_count)}});
}

absl::Status TokenCountMismatch(const std::string& id, int32_t layer, int64_t token_count, int64_t expected) {
  return MakeError(
      absl::StatusCode::kAborted, reason::kTokenCountMismatch,
      StrCat(NameOf(id), " layer ", layer, " has seen ", token_count, " tokens, the call expected ", expected),
      {{"session", NameOf(id)},
       {"layer", StrCat(layer)},
       {"token_count", StrCat(token_count)},
       {"expected", StrCat(expected)}});
}

absl::Status TokenCountLimit(const std::string& id, int32_t layer, int64_t token_count, int64_t tokens) {
  return MakeError(absl::StatusCode::kOutOfRange, reason::kCountLimit,
                   StrCat(NameOf(id), " layer ", layer, " has seen ", token_count, " tokens, and ", tokens,
                          " more would pass ", kMaxTokenCount, ", where counts end; go on in a new session"),
                   {{"session", NameOf(id)},
                    {"layer", StrCat(layer)},
                    {"field", "token_count"},
                    {"found", StrCat(token_count)},
                    {"expected", StrCat(kMaxTokenCount)}});
}

absl::Status EpochLimit(const std::string& id, int64_t epoch) {
  return MakeError(
      absl::StatusCode::kOutOfRange, reason::kCountLimit,
      StrCat(NameOf(id), " is in epoch ", epoch, ", the last there is, and cannot go back to a checkpoint"),
      {{"session", NameOf(id)}, {"field", "epoch"}, {"found", StrCat(epoch)}, {"expected", StrCat(kMaxEpoch)}});
}

absl::Status StepIdReused(const std::string& id, int32_t layer, std::string_view request_id) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kRequestIdReused,
                   StrCat("request_id '", request_id, "' was used for another payload of ", NameOf(id), " layer ",
                          layer, "; use a new id for a new step"),
                   {{"session", NameOf(id)}, {"layer", StrCat(layer)}, {"request_id", std::string(request_id)}});
}

absl::Status ReplyDropped(const std::string& id, int32_t layer, std::string_view request_id, int64_t token_count) {
  return MakeError(
      absl::StatusCode::kAborted, reason::kReplyDropped,
      StrCat("the step of request_id '", request_id, "' on ", NameOf(id), " layer ", layer,
             " happened, and its output was given up for want of memory (--stored-reply-bytes). To have it "
             "again, restore a checkpoint and send the inputs since then; else go on behind it"),
      {{"session", NameOf(id)},
       {"layer", StrCat(layer)},
       {"request_id", std::string(request_id)},
       {"token_count", StrCat(token_count)}});
}

absl::Status AcceptIdReused(const std::string& id, const std::string& request_id, int32_t before, int32_t now) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kRequestIdReused,
                   StrCat("request_id '", request_id, "' accepted ", before, " tokens of ", NameOf(id), ", now ", now,
                          before == now ? " of another path" : "", "; use a new id for a new call"),
                   {{"session", NameOf(id)}, {"request_id", request_id}});
}

absl::Status DraftPending(const std::string& id, int32_t layer, int32_t draft_length) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDraftPending,
                   StrCat(NameOf(id), " layer ", layer, " has a draft of ", draft_length,
                          " tokens that wait for a verdict; call AcceptTokens first (0 drops them)"),
                   {{"session", NameOf(id)}, {"layer", StrCat(layer)}, {"draft_length", StrCat(draft_length)}});
}

absl::Status DraftTooShort(const std::string& id, int32_t layer, int32_t draft_length, int32_t accepted_tokens) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                   StrCat(NameOf(id), " layer ", layer, " has a draft of ", draft_length, " tokens, of which ",
                          accepted_tokens, " cannot be accepted; expected 0 .. ", draft_length),
                   {{"session", NameOf(id)},
                    {"layer", StrCat(layer)},
                    {"found", StrCat(accepted_tokens)},
                    {"expected", StrCat(draft_length)}});
}

absl::Status OfDraft(const std::string& id, int32_t layer, const absl::Status& status) {
  const absl::Status prefixed = WithPrefix(status, StrCat(NameOf(id), " layer ", layer, "'s draft"));
  return WithMetadata(WithMetadata(prefixed, "session", NameOf(id)), "layer", StrCat(layer));
}

absl::Status NoDraft(const std::string& id, int32_t accepted_tokens) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                   StrCat(NameOf(id), " has no draft, so ", accepted_tokens,
                          " tokens cannot be accepted; send Decode with draft first"),
                   {{"session", NameOf(id)}, {"found", StrCat(accepted_tokens)}, {"expected", "0"}});
}

absl::Status NoDurableTier() {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDurableTier,
                   "this server keeps no checkpoints; start it with --disk-dir or --redis");
}

absl::Status SessionExists(const std::string& id) {
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kSessionExists,
                   StrCat(NameOf(id), " exists and was made by a different request; choose another id or delete it"),
                   {{"session", NameOf(id)}});
}

absl::Status CheckpointNotFound(const std::string& id, const std::string& checkpoint) {
  return MakeError(absl::StatusCode::kNotFound, reason::kCheckpointNotFound,
                   checkpoint.empty() ? StrCat(NameOf(id), " has no checkpoint yet; call CheckpointSession first")
                                      : StrCat(NameOf(id), " has no checkpoint '", checkpoint, "'"),
                   {{"session", NameOf(id)}, {"checkpoint", checkpoint}});
}

absl::Status OfRow(const absl::Status& status, size_t row, std::string_view session) {
  return WithMetadata(WithPrefix(status, StrCat("row ", row, " (", session, ")")), "session", session);
}

}  // namespace gdn
