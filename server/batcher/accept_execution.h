// Accepts drafts: the accepted tokens of a pending draft become the session's, the others are dropped.
//
// Most acceptances only change counts. Two kinds of work run on the engine's thread. If a tree's path is not the
// draft's first tokens, the entries of its tokens are moved to the front. If the log is full with the accepted tokens,
// its first L entries are folded.
// Thread safety: safe from any thread. Ownership: takes the leases. The batcher must outlive the task.
//
//   Task<absl::Status> accept = AcceptDrafts(batcher, std::move(rows), [] { ... });
//   GDN_CO_RETURN_IF_ERROR(co_await std::move(accept));
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "base/task/task.h"
#include "server/batcher/batcher.h"
#include "server/session/step_lease.h"

namespace gdn {

struct AcceptRow {
  StepLease lease;  // for a layer with a pending draft
  int32_t accepted_tokens = 0;
  // Indices of the accepted tokens in the draft, accepted_tokens of them; empty: the first ones.
  std::vector<int32_t> path = {};
};

// Accepts all rows or none. When the task ends, the leases are committed or given back. `committing` is called once
// nothing can fail any more, before the first lease is committed. All resources that could be missing are acquired
// first. If the work fails all the same, sessions whose drafts or bases it may have changed for good are lost
// (StepLease::Lose), and the others are unchanged.
Task<absl::Status> AcceptDrafts(Batcher& batcher, std::vector<AcceptRow> rows, std::function<void()> committing);

}  // namespace gdn
