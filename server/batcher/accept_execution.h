// Accepts drafts: the accepted tokens of a pending draft become the session's, the others are dropped.
//
// Most acceptances only change counts. Two kinds of work run on the engine's thread. If a tree's path is not the
// draft's first tokens, the entries of its tokens are moved to the front. If the log is full with the accepted tokens,
// its first L entries are folded. AcceptDrafts is the work of AcceptTokens; a step that accepts first uses DraftMoves.
// Thread safety: AcceptDrafts is safe from any thread; DraftMoves is for the engine's. Ownership: AcceptDrafts takes
// the leases. The batcher must outlive the task.
//
//   Task<absl::Status> accept = AcceptDrafts(batcher, std::move(rows), [] { ... });
//   GDN_CO_RETURN_IF_ERROR(co_await std::move(accept));
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/task/task.h"
#include "kernels/layer/accept_draft.h"
#include "server/batcher/batcher.h"
#include "server/session/step_lease.h"

namespace gdn {

// Returns the layer's progress once `tokens` tokens of its draft are accepted and the others dropped. A log that is
// full then is folded, so its length begins at 0 again. If the layer has no draft, `tokens` must be 0.
LayerProgress AfterAcceptance(const LayerProgress& before, int32_t tokens);

// The result of an acceptance for its layer.
struct AcceptedDraft {
  LayerProgress after;        // the layer's progress afterwards, when it has no draft any more
  bool folded = false;        // the work folds the log, so the slot has its own base afterwards
  bool unrepeatable = false;  // the work overwrites what a retry of it would read
};

// The work on the device of acceptances whose states are in one pool. Used by one thread, the engine's.
class DraftMoves {
 public:
  explicit DraftMoves(const StatePoolView& pool) : pool_(pool) {}

  // True if the acceptance needs work, so that it does more than change counts. `path`: empty for the first tokens.
  static bool Needed(const LayerProgress& before, int32_t tokens, absl::Span<const int32_t> path);
  // Adds the acceptance of a draft whose state is in the slots `where`, numbered as in this pool; adds no work if it is
  // not Needed. `path` must outlive this object. Returns what the layer has after Issue.
  AcceptedDraft Add(const LayerProgress& before, int32_t tokens, absl::Span<const int32_t> path,
                    const StepSlots& where);
  bool empty() const { return slots_.empty(); }
  // Issues all added work to the device; errors of the backend. The work cannot be repeated, so call this in
  // Backend::Prepare first, which acquires all it needs without computing.
  absl::Status Issue(Backend& backend) const;

 private:
  StatePoolView pool_;
  std::vector<int32_t> slots_, base_slots_, log_lengths_;
  std::vector<DraftPath> paths_;
};

struct AcceptRow {
  StepLease lease;  // of the layer whose pending draft is accepted
  int32_t accepted_tokens = 0;
  // Indices of the accepted tokens in the draft, accepted_tokens of them; empty: the first ones.
  std::vector<int32_t> path = {};
};

// Accepts all rows or none. When the task ends, the leases are committed or given back. `committing` is called once
// nothing can fail any more, before the first lease is committed; it is not called on an error. All resources that
// could be missing are acquired first. If the work fails all the same, sessions whose drafts or bases it may have
// changed for good are lost (StepLease::Lose), and the others are unchanged. Returns the error of Batcher::Run.
Task<absl::Status> AcceptDrafts(Batcher& batcher, std::vector<AcceptRow> rows, std::function<void()> committing);

}  // namespace gdn
