// The work that is left when tokens of a draft are accepted. In a tree, the entries and columns of the path that was
// chosen move behind the session's own. And states whose accepted log entries have passed L, which only drafts let
// happen, are brought to what plain decodes of the same tokens would have left: the first L entries folded into the
// base, those after them at the front of the log.
//
// A move or a fold in its place cannot be repeated, so Backend::Prepare comes first.
// Thread safety: as the backend's operators; the work may run behind the caller. Ownership: none.
//
//   std::vector<int32_t> lengths = {3, 18};  // accepted: 18 of a log's entries, some of them a draft's
//   GDN_RETURN_IF_ERROR(FoldAccepted(backend, {.pool = pool, .count = 2, .slots = slots, .log_lengths = lengths.data(),
//                                              .folded = folded}));
//   // lengths is now {3, 2} and folded {0, 1}
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace gdn {

// A path of a slot's pending draft.
struct DraftPath {
  int32_t slot = 0;
  int64_t token_count = 0;         // before the draft
  int32_t log_length = 0;          // before the draft
  absl::Span<const int32_t> path;  // indices of the draft's tokens, ascending
};

// Brings the log entries and convolution columns of each path's tokens to where a chain of them would have left them:
// from where FoldAccepted can go on. Slots are distinct. INVALID_ARGUMENT before anything is touched.
absl::Status MoveDraftPaths(Backend& backend, const StatePoolView& pool, absl::Span<const DraftPath> paths);

struct FoldAcceptedParams {
  StatePoolView pool;
  int32_t count = 0;
  // [count] each, host memory.
  const int32_t* slots = nullptr;       // distinct, >= 0
  const int32_t* base_slots = nullptr;  // the slots that hold the bases, no other entry's in `slots`; nullptr: slots
  int32_t* log_lengths = nullptr;       // in: accepted entries, up to the layout's log_rows; out: what is left, < L
  uint8_t* folded = nullptr;            // out: 1 where the base is in slots[i] now, 0 where nothing moved; may be null
};

// Entries past the accepted ones are gone; convolution columns stay as they are. Nothing is touched where an argument
// is refused (INVALID_ARGUMENT).
absl::Status FoldAccepted(Backend& backend, const FoldAcceptedParams& params);

}  // namespace gdn
