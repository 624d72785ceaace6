#include "server/batcher/batch_execution.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr int64_t kAlignFloats = 16;

int64_t AlignUp(int64_t floats) { return (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats; }

// Why a job should not begin, or OK.
absl::Status Stopped(const StepJob& job) {
  if (job.cancelled.load(std::memory_order_relaxed)) {
    return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled,
                     "the call was cancelled before its step was applied; the state did not move");
  }
  if (absl::Now() >= job.deadline) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded,
                     "the deadline passed before the step was applied; the state did not move");
  }
  return absl::OkStatus();
}

// Where LayerStep keeps the index-th field of a kind.
const float** FieldPointer(LayerStep& step, int index) {
  switch (step.kind) {
    case InputKind::kHiddenStates:
      return &step.hidden_states;
    case InputKind::kProjected:
      return std::array{&step.mixed_qkv, &step.z, &step.b, &step.a}[static_cast<size_t>(index)];
    default:
      return std::array{&step.q, &step.k, &step.v, &step.g, &step.beta}[static_cast<size_t>(index)];
  }
}

LayerStep MakeStep(const StepJob& job, const StatePoolView& pool) {
  LayerStep step;
  step.weights = job.weights;
  step.pool = pool;
  step.kind = job.kind;
  step.scale = job.scale;
  step.use_qk_l2norm = job.use_qk_l2norm;
  return step;
}

void CommitRow(const StepJob& job, StepRow& row, const StepOutcome& outcome, int64_t compute_time_us) {
  std::shared_ptr<StoredReply> reply;
  if (row.keep_reply) {
    const size_t bytes = static_cast<size_t>(row.tokens * job.output_features) * DTypeSize(job.output_dtype);
    reply = std::make_shared<StoredReply>();
    reply->output.assign(row.output, bytes);
    reply->token_count = outcome.after.token_count;
    reply->compute_time_us = compute_time_us;
  }
  row.token_count = outcome.after.token_count;
  row.lease.Commit(outcome, std::move(reply));
}

void FailRow(StepRow& row, const absl::Status& status) {
  row.status = status;
  row.lease = StepLease();
}

}  // namespace

absl::Status BatchExecutor::Gather(const std::vector<RowSpan>& rows, LayerStep* step) {
  const StepJob& shape = *rows.front().job;
  int64_t tokens = 0;
  for (const RowSpan& span : rows) tokens += span.tokens;
  std::array<int64_t, kMaxStepFields> offsets{};
  int64_t floats = 0;
  for (int f = 0; f < shape.field_count; ++f) {
    offsets[static_cast<size_t>(f)] = floats;
    floats += AlignUp(tokens * shape.fields[static_cast<size_t>(f)].features);
  }
  const int64_t output_offset = floats;
  const auto bytes = static_cast<size_t>(floats + AlignUp(tokens * shape.output_features)) * sizeof(float);
  if (bytes > staging_.bytes()) {
    staging_ = DeviceBuffer();  // freed first: the two need not fit side by side
    GDN_ASSIGN_OR_RETURN(staging_, DeviceBuffer::Make(backend_, bytes));
  }
  const bool unified = backend_.info().unified_memory;
  if (!unified) host_staging_.resize(std::max(host_staging_.size(), bytes / sizeof(float)));
  float* host = unified ? staging_.floats() : host_staging_.data();
  for (int f = 0; f < shape.field_count; ++f) {
    const auto index = static_cast<size_t>(f);
    float* out = host + offsets[index];
    for (const RowSpan& span : rows) {
      const StepField& field = span.job->fields[index];
      const int64_t count = span.tokens * field.features;
      const char* in =
          span.row->inputs[index] + static_cast<size_t>(span.first * field.features) * DTypeSize(field.dtype);
      ConvertToFloat(field.dtype, in, static_cast<size_t>(count), out);
      out += count;
    }
    *FieldPointer(*step, f) = staging_.floats() + offsets[index];
  }
  step->output = staging_.floats() + output_offset;
  if (unified) return absl::OkStatus();
  return backend_.CopyIn(staging_.data(), host, static_cast<size_t>(output_offset) * sizeof(float));
}

absl::Status BatchExecutor::Scatter(const std::vector<RowSpan>& rows, const LayerStep& step) {
  const float* host = step.output;
  if (!backend_.info().unified_memory) {
    const auto count = static_cast<size_t>(step.batch.tokens() * rows.front().job->output_features);
    host_staging_.resize(std::max(host_staging_.size(), count));
    GDN_RETURN_IF_ERROR(backend_.CopyOut(host_staging_.data(), step.output, count * sizeof(float)));
    host = host_staging_.data();
  }
  GDN_RETURN_IF_ERROR(backend_.Synchronize());
  for (const RowSpan& span : rows) {
    const int64_t count = span.tokens * span.job->output_features;
    char* out = span.row->output +
                static_cast<size_t>(span.first * span.job->output_features) * DTypeSize(span.job->output_dtype);
    ConvertFromFloat(host, static_cast<size_t>(count), span.job->output_dtype, out);
    host += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<StepSlots> PrepareDecodeSlot(Backend& backend, StepLease& lease) {
  GDN_ASSIGN_OR_RETURN(const StepSlots slots, lease.PrepareDecode());
  const StatePoolView& pool = lease.pool()->view();
  if (slots.zero) GDN_RETURN_IF_ERROR(backend.ZeroSlot(pool, slots.slot));
  if (slots.copy_tail_from >= 0) {
    // Log and convolution columns lie behind the base.
    const int64_t tail = pool.layout.log_k_offset();
    GDN_RETURN_IF_ERROR(backend.Copy(pool.slot(slots.slot) + tail, pool.slot(slots.copy_tail_from) + tail,
                                     static_cast<size_t>(pool.layout.slot_floats() - tail) * sizeof(float)));
  }
  return slots;
}

absl::Status BatchExecutor::RunDecode(std::vector<RowSpan>& rows, std::vector<StepOutcome>& outcomes) {
  const StepJob& shape = *rows.front().job;
  const StatePoolView pool = rows.front().row->lease.pool()->view();
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<int32_t> slots, base_slots, log_lengths;
  std::vector<int64_t> token_counts;
  for (RowSpan& span : rows) {
    StepLease& lease = span.row->lease;
    GDN_ASSIGN_OR_RETURN(const StepSlots where, PrepareDecodeSlot(backend_, lease));
    cu_seqlens.push_back(cu_seqlens.back() + span.tokens);
    slots.push_back(where.slot);
    base_slots.push_back(where.base_slot);
    token_counts.push_back(lease.before().token_count);
    log_lengths.push_back(lease.before().log_length);
    // A new state's base is its own from the start; another's once the log is full, which a draft's never is.
    const bool folds = !shape.draft && log_lengths.back() + span.tokens >= kLogCapacity;
    outcomes.push_back({.after = lease.before(), .base_written = where.zero || folds});
  }
  LayerStep step = MakeStep(shape, pool);
  step.batch = {.sequences = static_cast<int32_t>(rows.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
  step.token_counts = token_counts.data();
  if (base_slots != slots) step.base_slots = base_slots.data();
  step.draft = shape.draft;
  GDN_RETURN_IF_ERROR(Gather(rows, &step));
  GDN_RETURN_IF_ERROR(runner_.Decode(step, log_lengths.data()));
  for (size_t i = 0; i < rows.size(); ++i) {
    LayerProgress& after = outcomes[i].after;
    if (shape.draft) {
      after.draft_length = rows[i].tokens;
    } else {
      after.token_count += rows[i].tokens;
      after.log_length = log_lengths[i];
    }
  }
  return Scatter(rows, step);
}

void BatchExecutor::Run(const Launch& launch, std::vector<StepJob*>& ended) {
  if (!launch.prefill) return Decode(launch, ended);
  for (const Launch::Part& part : launch.parts) Prefill(part, ended);
}

void BatchExecutor::Decode(const Launch& launch, std::vector<StepJob*>& ended) {
  const absl::Time begin = absl::Now();
  // A launch takes slots of one pool; sessions of one layout may be in several.
  struct OfPool {
    std::vector<RowSpan> rows;
    std::vector<StepOutcome> outcomes;
    absl::Status status;
  };
  std::map<const StatePool*, OfPool> pools;
  for (const Launch::Part& part : launch.parts) {
    StepJob& job = static_cast<StepJob&>(*part.step);
    const absl::Status stopped = Stopped(job);
    for (StepRow& row : job.rows) {
      // A row that another call has joined is computed all the same: that call wants it.
      if (!stopped.ok() && row.lease.TryCancel()) {
        row.status = stopped;
      } else if (row.tokens == 0) {
        CommitRow(job, row, {.after = row.lease.before()}, 0);
      } else {
        pools[row.lease.pool().get()].rows.push_back({.job = &job, .row = &row, .first = 0, .tokens = row.tokens});
      }
    }
  }
  for (auto& [pool, rows] : pools) {
    rows.status = health_.status();
    if (rows.status.ok()) rows.status = health_.Report(RunDecode(rows.rows, rows.outcomes));
  }
  const int64_t compute_time_us = absl::ToInt64Microseconds(absl::Now() - begin);
  for (auto& [pool, rows] : pools) {
    for (size_t i = 0; i < rows.rows.size(); ++i) {
      StepRow& row = *rows.rows[i].row;
      if (rows.status.ok()) {
        CommitRow(*rows.rows[i].job, row, rows.outcomes[i], compute_time_us);
      } else {
        FailRow(row, rows.status);
      }
    }
  }
  for (const Launch::Part& part : launch.parts) {
    StepJob& job = static_cast<StepJob&>(*part.step);
    job.compute_time_us = compute_time_us;
    ended.push_back(&job);
  }
}

absl::Status BatchExecutor::BeginPrefill(StepJob& job) {
  StepLease& lease = job.rows.front().lease;
  const int32_t source = lease.slot();
  const int32_t source_base = source < 0 ? -1 : lease.base_slot();
  GDN_ASSIGN_OR_RETURN(job.aside, lease.PrepareAside());
  const int32_t log_length = lease.before().log_length;
  return backend_.MaterializeState({.pool = lease.pool()->view(),
                                    .count = 1,
                                    .src = &source,
                                    .dst = &job.aside,
                                    .log_lengths = &log_length,
                                    .src_bases = source == source_base ? nullptr : &source_base});
}

absl::Status BatchExecutor::RunSegment(StepJob& job, int32_t first, int32_t tokens) {
  StepRow& row = job.rows.front();
  GDN_RETURN_IF_ERROR(health_.status());
  if (first == 0) GDN_RETURN_IF_ERROR(BeginPrefill(job));
  const std::array<int32_t, 2> cu_seqlens = {0, tokens};
  const int64_t token_count = row.lease.before().token_count + first;
  LayerStep step = MakeStep(job, row.lease.pool()->view());
  step.batch = {.sequences = 1, .cu_seqlens = cu_seqlens.data(), .slots = &job.aside};
  step.token_counts = &token_count;
  const std::vector<RowSpan> rows = {{.job = &job, .row = &row, .first = first, .tokens = tokens}};
  GDN_RETURN_IF_ERROR(Gather(rows, &step));
  GDN_RETURN_IF_ERROR(runner_.Prefill(step));
  return Scatter(rows, step);
}

void BatchExecutor::Prefill(const Launch::Part& part, std::vector<StepJob*>& ended) {
  StepJob& job = static_cast<StepJob&>(*part.step);
  StepRow& row = job.rows.front();
  if (absl::Status stopped = Stopped(job); !stopped.ok() && row.lease.TryCancel()) {
    row.status = stopped;
    return ended.push_back(&job);
  }
  const absl::Time begin = absl::Now();
  absl::Status status;
  if (part.tokens > 0) {
    status = health_.Report(RunSegment(job, static_cast<int32_t>(part.first), static_cast<int32_t>(part.tokens)));
  }
  job.compute_time_us += absl::ToInt64Microseconds(absl::Now() - begin);
  if (!status.ok()) {
    FailRow(row, status);
  } else if (!part.last) {
    return;
  } else if (row.tokens == 0) {
    CommitRow(job, row, {.after = row.lease.before()}, 0);
  } else {
    const StepOutcome outcome{.after = {.token_count = row.lease.before().token_count + row.tokens},
                              .base_written = true};
    CommitRow(job, row, outcome, job.compute_time_us);
  }
  ended.push_back(&job);
}

}  // namespace gdn
