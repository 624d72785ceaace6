// State from outside (an imported file, a copy in a tier) that is not what the session or a call takes it for.
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

// DATA_LOSS (INVALID_STATE_FILE) unless a tier's copy has the counts of each layer that the session has.
absl::Status CheckIsStateOf(const Session& session, const SessionImage& image);

// ABORTED (REPLY_DROPPED): the reply that is kept for the call is not as long as the call's own output, which has
// `expected` bytes. The step has happened, by a state that was imported or stored.
absl::Status ReplyDoesNotFit(const std::string& id, int32_t layer, const StoredReply& reply, int64_t expected);

}  // namespace gdn
