// The errors with which a session refuses calls (session_rules.h), with the metadata that a client needs to continue.
//
// Thread safety: free functions. Ownership: none.
//
//   if (layer.busy) return LayerBusy(session.id, layer.layer);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/layer_dims.h"

namespace gdn {

// Makes the error NOT_FOUND (SESSION_NOT_FOUND: session). `id`, here and below: the session's id, without "sessions/".
absl::Status SessionNotFound(const std::string& id);
// Makes the error ALREADY_EXISTS (SESSION_EXISTS: session): a session with this id exists and was created by another
// request.
absl::Status SessionExists(const std::string& id);
// Makes the error DATA_LOSS (STATE_ROLLED_BACK if `durable`, else STATE_LOST: session, layer): a step of the layer
// failed with `why` and may have changed the state for good. `durable`: the session has a durable copy.
absl::Status StateLost(const std::string& id, int32_t layer, bool durable, const absl::Status& why);
absl::Status LayerNotGdn(const std::string& id, int32_t layer, const std::vector<int32_t>& layers);
absl::Status LayerBusy(const std::string& id, int32_t layer);
absl::Status InputNeedsModel(const std::string& id, InputKind found);
absl::Status InputKindMismatch(const std::string& id, int32_t layer, InputKind found, InputKind expected);
absl::Status EpochMismatch(const std::string& id, int64_t epoch, int64_t expected, int64_t token_count);
absl::Status TokenCountMismatch(const std::string& id, int32_t layer, int64_t token_count, int64_t expected);
// Make the error OUT_OF_RANGE (COUNT_LIMIT: field, found, expected): the call would take the count of tokens, or the
// epoch, past its limit (base/count_limits.h). `tokens`: those of the call.
absl::Status TokenCountLimit(const std::string& id, int32_t layer, int64_t token_count, int64_t tokens);
absl::Status EpochLimit(const std::string& id, int64_t epoch);
absl::Status StepIdReused(const std::string& id, int32_t layer, std::string_view request_id);
absl::Status ReplyDropped(const std::string& id, int32_t layer, std::string_view request_id, int64_t token_count);
absl::Status AcceptIdReused(const std::string& id, const std::string& request_id, int32_t before, int32_t now);
absl::Status DraftPending(const std::string& id, int32_t layer, int32_t draft_length);
absl::Status DraftTooShort(const std::string& id, int32_t layer, int32_t draft_length, int32_t accepted_tokens);
// Returns `status`, the error of an accepted path (base/draft_tree.h), with the session and the layer of the draft
// before its message and in its metadata.
absl::Status OfDraft(const std::string& id, int32_t layer, const absl::Status& status);
absl::Status NoDraft(const std::string& id, int32_t accepted_tokens);

// Makes the error FAILED_PRECONDITION (NO_DURABLE_TIER): the server keeps no checkpoints.
absl::Status NoDurableTier();
// Makes the error NOT_FOUND (CHECKPOINT_NOT_FOUND: session, checkpoint). `checkpoint`: its id; "": the newest
// checkpoint.
absl::Status CheckpointNotFound(const std::string& id, const std::string& checkpoint);

// Returns `status`, the error of one row of a call, with the row's number and the session's name (`session`) before its
// message, and the name in its metadata. OK stays OK.
absl::Status OfRow(const absl::Status& status, size_t row, std::string_view session);

}  // namespace gdn
