// Errors for a state from outside (an imported file, a copy in a tier) that is not what the session or a call expects.
//
// Thread safety: free functions. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(CheckIsStateOf(*session, **fetched));
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "state_store/session_image.h"

namespace gdn {

class Session;

// OK if the image has, for each layer, the same counts of tokens, log entries and draft as the session. Else DATA_LOSS
// (INVALID_STATE_FILE: session, layer).
absl::Status CheckIsStateOf(const Session& session, const SessionImage& image);

// Returns ABORTED (REPLY_DROPPED): the stored reply to the call has another length than the call's own output, which
// has `expected` bytes. The step has happened, according to a state that was imported or stored.
absl::Status ReplyDoesNotFit(const std::string& id, int32_t layer, const StoredReply& reply, int64_t expected);

}  // namespace gdn
