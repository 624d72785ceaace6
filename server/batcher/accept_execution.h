// Accepting drafts: the first tokens of a pending draft become the session's, the others are forgotten.
//
// Most acceptances only move counts. A tree's path whose tokens are not the draft's first moves their entries, and
// where the log is full with what was accepted its first L entries are folded: both on the engine's thread.
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
  StepLease lease;  // on a layer with a draft
  int32_t accepted_tokens = 0;
  std::vector<int32_t> path = {};  // of the draft's tokens, as many; empty: its first ones
};

// All rows or none; when it ends their leases are committed or given back. `committing` is called once nothing can fail
// any more, before the first lease is committed. All that can be wanting is acquired first. If the work fails all the
// same, sessions whose drafts or bases it may have changed for good are lost (StepLease::Lose), and the others are as
// they were.
Task<absl::Status> AcceptDrafts(Batcher& batcher, std::vector<AcceptRow> rows, std::function<void()> committing);

}  // namespace gdn
