// Finishes the acceptance of tokens of a draft. For a tree, the log entries and columns of the chosen path move
// directly behind the session's own. If the accepted entries exceed L, which only drafts can cause, the first L are
// folded into the base and the rest move to the front of the log: the state that plain decodes of the same tokens
// leave.
//
// Moves and in-place folds cannot be repeated, so run them under Backend::Prepare first.
// Thread safety: as the backend's operators; the work may run behind the caller. Ownership: none.
//
//   std::vector<int32_t> lengths = {3, 18};  // accepted: 18 of a log's entries, some of them a draft's
//   GDN_RETURN_IF_ERROR(FoldAccepted(backend, {.pool = pool, .count = 2, .slots = slots, .log_lengths = lengths.data(),
//                                              .folded = folded}));
//   // lengths is now {3, 2} and folded {0, 1}
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace gdn {

// The accepted path of a slot's pending draft: its tokens in order from the root. Not owned.
struct DraftPath {
  int32_t slot = 0;
  int64_t token_count = 0;         // the session's tokens before the draft
  int32_t log_length = 0;          // log entries before the draft, < L
  absl::Span<const int32_t> path;  // indices of the draft's tokens from 0, ascending; may be empty
};

// Moves the log entries and convolution columns of each path's tokens to where a chain of these tokens would have put
// them; FoldAccepted can follow. Slots must be distinct, which is not checked. INVALID_ARGUMENT, and nothing is
// changed, if a slot, log length or path is out of range. Issues copies, which may run later.
absl::Status MoveDraftPaths(Backend& backend, const StatePoolView& pool, absl::Span<const DraftPath> paths);

struct FoldAcceptedParams {
  StatePoolView pool;
  int32_t count = 0;
  // [count] each, host memory.
  const int32_t* slots = nullptr;       // distinct, >= 0
  const int32_t* base_slots = nullptr;  // slots that hold the bases, none in another entry's `slots`; nullptr: slots
  int32_t* log_lengths = nullptr;       // in: accepted entries, up to log_rows; out: entries left, < L
  uint8_t* folded = nullptr;            // out: 1 if the base is in slots[i] now, 0 if nothing changed; may be null
};

// Folds each slot's log into its base, L entries at a time, while L or more are accepted, and moves the rest to the
// log's front. Log entries past the accepted ones are lost; convolution columns do not change. INVALID_ARGUMENT, and
// nothing is changed, if the params are invalid. Issues operators, which may run later; log_lengths and folded are set
// on return.
absl::Status FoldAccepted(Backend& backend, const FoldAcceptedParams& params);

}  // namespace gdn
