// Steps on their way to the engine: a job is one call's rows, with leases on their states and views of their inputs.
//
// Thread safety: filled by one thread, then handed to the Batcher; only Cancel() may be called while it is there.
// Ownership: inputs and outputs are the caller's and must live until the job has ended in `done`.
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
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/steady_clock.h"
#include "base/task/arrivals.h"
#include "kernels/layer/gdn_layer.h"
#include "server/scheduler/scheduler.h"
#include "server/session/step_lease.h"
#include "server/trace/call_trace.h"

namespace gdn {

// One input tensor of a kind: hidden_states | mixed_qkv, z, b, a | q, k, v, g, beta, in this order.
struct StepField {
  DType dtype = DType::kF32;
  int64_t features = 0;  // elements of one token
};
inline constexpr int kMaxStepFields = kMaxLayerFields;

struct StepRow {
  StepLease lease;
  int32_t tokens = 0;
  std::array<const char*, kMaxStepFields> inputs{};  // the row's first token of each field, tokens dense
  absl::Span<const int32_t> parents = {};            // [tokens] of a draft that is a tree; empty: a chain
  char* output = nullptr;                            // tokens * output_features elements of output_dtype
  bool keep_reply = false;                           // the step has a request id
  std::shared_ptr<StoredReply> reply;                // the engine's: what is kept, of the segments that have run

  // Adds of each token the one that it follows, of chains too.
  void AddParents(std::vector<int32_t>& to) const {
    if (!parents.empty()) to.insert(to.end(), parents.begin(), parents.end());
    for (int32_t token = 0; parents.empty() && token < tokens; ++token) to.push_back(token - 1);
  }

  // Results, for a row that was computed (status OK).
  absl::Status status;
  int64_t token_count = 0;
};

// A prefill has one row of any number of tokens, a decode up to max_draft tokens a row. Of what ScheduledStep has, the
// maker sets `prefill` alone; the rest is the batcher's.
struct StepJob : ScheduledStep {
  bool draft = false;                     // decode only: the tokens wait to be accepted
  bool tree = false;                      // of a draft: a row has parents
  const LayerWeights* weights = nullptr;  // nullptr for an operator session
  InputKind kind = InputKind::kHiddenStates;
  std::array<StepField, kMaxStepFields> fields{};
  int field_count = 0;
  float scale = 0.0f;  // delta_rule only
  bool use_qk_l2norm = false;
  float max_beta = 2.0f;  // of delta_rule, as LayerStep has it
  DType output_dtype = DType::kF32;
  int64_t output_features = 0;
  std::vector<StepRow> rows;
  bool page_locked = false;  // inputs and outputs are in memory of Backend::AllocateHost
  SteadyTime deadline = SteadyTime::InfiniteFuture();
  Arrivals* done = nullptr;    // where the job ends, as one operation; null: nobody waits. Rows carry the results
  CallTrace* trace = nullptr;  // the call's, where it is traced; filled until the job ends in `done`

  int64_t compute_time_us = 0;  // out: engine time of the batches that held the job

  // The step is dropped where it has not begun (a prefill: not ended).
  void Cancel() { cancelled.store(true, std::memory_order_relaxed); }
  std::atomic<bool> cancelled{false};

  // The engine's.
  SteadyTime submitted;           // when
  std::shared_ptr<StepJob> self;  // while it waits or runs
  int32_t aside = -1;             // the slot that a prefill which has begun writes to
  int32_t on_their_way = 0;       // segments that were issued and have not ended
  absl::Status failure;           // of a segment that has
};
using StepJobPtr = std::shared_ptr<StepJob>;

}  // namespace gdn
