// Why a session does not take a step: the errors of Session::Admit and AdmitAccept, with what a client needs to go on;
// and why a stored state is not a session's.
//
// Thread safety: free functions. Ownership: none.
//
//   if (layer.busy) return LayerBusy(id(), request.layer);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "state_store/session_image.h"

namespace gdn {

class Session;
struct SessionSpec;

absl::Status SessionNotFound(const std::string& id);
// A step of the layer failed (`why`) when it may have changed the state for good.
absl::Status StateLost(const std::string& id, int32_t layer, bool durable, const absl::Status& why);
// Nobody can tell: the tier has not answered since the server started.
absl::Status SessionMaybeIn(const std::string& tier, const std::string& id);
// Its newest state is in the tier, which is not to be reached, or not used by this server.
absl::Status SessionAwayIn(const std::string& tier, const std::string& id);
absl::Status LayerNotGdn(const std::string& id, int32_t layer, const std::vector<int32_t>& layers);
absl::Status LayerBusy(const std::string& id, int32_t layer);
absl::Status InputNeedsModel(const std::string& id, InputKind found);
absl::Status InputKindMismatch(const std::string& id, int32_t layer, InputKind found, InputKind expected);
absl::Status EpochMismatch(const std::string& id, int64_t epoch, int64_t expected, int64_t token_count);
// OK if the session is in this epoch, or the caller names none; else EpochMismatch, with the least token count of its
// layers. Under a SessionLease the answer stays true: nobody else can restore the session meanwhile.
absl::Status CheckEpoch(const Session& session, const std::optional<int64_t>& epoch);
absl::Status TokenCountMismatch(const std::string& id, int32_t layer, int64_t token_count, int64_t expected);
// What the counts of a session would pass (base/count_limits.h).
absl::Status TokenCountLimit(const std::string& id, int32_t layer, int64_t token_count, int64_t tokens);
absl::Status EpochLimit(const std::string& id, int64_t epoch);
absl::Status StepIdReused(const std::string& id, int32_t layer, std::string_view request_id);
absl::Status ReplyDropped(const std::string& id, int32_t layer, std::string_view request_id, int64_t token_count);
absl::Status AcceptIdReused(const std::string& id, const std::string& request_id, int32_t before, int32_t now);
absl::Status DraftPending(const std::string& id, int32_t layer, int32_t draft_length);
absl::Status DraftTooShort(const std::string& id, int32_t layer, int32_t draft_length, int32_t accepted_tokens);
// What is wrong with a path, of whose draft.
absl::Status OfDraft(const std::string& id, int32_t layer, const absl::Status& status);
absl::Status NoDraft(const std::string& id, int32_t accepted_tokens);

// Whether a stored state is of this model, these dims and layers: FAILED_PRECONDITION (STATE_MISMATCH: field, found,
// expected) where it is not.
absl::Status CheckStateFits(const SessionHeader& header, const std::vector<int32_t>& layers, const SessionSpec& spec);

// Of servers that share sessions.
absl::Status NodeLeaseLapsed();
absl::Status SessionMoved(const std::string& id);
absl::Status SessionElsewhere(const std::string& id, const std::string& node);

// FAILED_PRECONDITION (NO_DURABLE_TIER).
absl::Status NoDurableTier();

}  // namespace gdn
