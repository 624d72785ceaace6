// A job for the engine: the rows of one call that run on one device, with leases on their states and views of their
// inputs.
//
// Thread safety: one thread fills the job and hands it to the Batcher. Until it has ended, only Cancel() may be called.
// Ownership: the caller owns inputs and outputs, which must live until the job has ended in `done`.
//
//   auto job = std::make_shared<StepJob>();
//   job->rows.push_back(std::move(row));
//   job->done = &open;  // Arrivals of the flow that waits
//   open.Begin();
//   const absl::Status begun = batcher.Submit(job);
//   if (!begun.ok()) open.Withdraw(1);
//   co_await open.All();
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/step_shape.h"
#include "base/task/arrivals.h"
#include "base/threads/steady_clock.h"
#include "kernels/layer/gdn_layer.h"
#include "server/scheduler/scheduler.h"
#include "server/session/step_lease.h"
#include "server/trace/call_trace.h"
#include "session_rules/session_rules.h"

namespace gdn {

struct StepRow {
  StepLease lease;
  int32_t tokens = 0;
  std::array<const char*, kMaxStepFields> inputs{};  // each field's data of the row's first token; the others follow
  // [tokens], index of each token's parent in a tree-shaped draft; -1: the last token before the draft. Empty: a chain.
  absl::Span<const int32_t> parents = {};
  char* output = nullptr;                     // space for tokens * shape.output_features of shape.output_dtype
  const Acceptance* accept_before = nullptr;  // acceptance of the pending draft, done first; null: none. Borrowed
  bool keep_reply = false;                    // the step has a request id, so a reply is stored for retries
  bool keep_output = false;  // if keep_reply: the stored reply also has the output, so that a retry gets it
  // Used by the engine: the reply to keep, with the output of the segments that have run.
  std::shared_ptr<StoredReply> reply;

  // Appends the parent of each token to `to`; in a chain that is the token before it, -1 for the first.
  void AddParents(std::vector<int32_t>& to) const {
    if (!parents.empty()) to.insert(to.end(), parents.begin(), parents.end());
    for (int32_t token = 0; parents.empty() && token < tokens; ++token) to.push_back(token - 1);
  }

  // Results. token_count, set if status is OK: tokens that the layer's state has after the step, without a draft.
  absl::Status status;
  int64_t token_count = 0;
};

// A prefill has one row of any number of tokens; a decode has up to max_draft tokens in each row. The maker sets
// `prefill` of ScheduledStep's members; the batcher sets the others.
struct StepJob : ScheduledStep {
  bool draft = false;                     // decode only: the tokens become a draft, to be accepted later
  bool tree = false;                      // draft only: some row has parents
  const LayerWeights* weights = nullptr;  // nullptr for an operator session
  StepShape shape;
  std::vector<StepRow> rows;
  bool page_locked = false;  // inputs and outputs are in memory from Backend::AllocateHost
  SteadyTime deadline = SteadyTime::InfiniteFuture();
  Arrivals* done = nullptr;    // the job ends here as one operation; null: nobody waits. Results are in the rows
  CallTrace* trace = nullptr;  // null if the call is not traced; filled until the job ends in `done`

  int64_t compute_time_us = 0;  // result: device time of the launches that ran the job

  // Asks to drop the step, from any thread, without waiting. Rows of a decode that is issued already are computed and
  // committed, and so is a prefill whose last segment is. The others end with CANCELLED, unless another call has joined
  // the row.
  void Cancel() { cancelled.store(true, std::memory_order_relaxed); }
  std::atomic<bool> cancelled{false};

  // Used by the engine:
  SteadyTime submitted;           // when the batcher took the job
  std::shared_ptr<StepJob> self;  // keeps the job alive while it waits or runs
  int32_t aside = -1;             // slot that a begun prefill writes to; -1: it has not begun
  int32_t on_their_way = 0;       // issued segments that have not ended
  absl::Status failure;           // first error of a segment that has ended
};
using StepJobPtr = std::shared_ptr<StepJob>;

}  // namespace gdn
