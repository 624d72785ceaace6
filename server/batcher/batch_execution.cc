#include "server/batcher/batch_execution.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/threads/this_thread.h"
#include "server/batcher/accept_execution.h"

namespace gdn {
namespace {

// OK, or the reason why the job must not go on: cancelled, or past its deadline.
absl::Status Stopped(const StepJob& job) {
  if (job.cancelled.load(std::memory_order_relaxed)) {
    return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled,
                     "the call was cancelled before its step was applied; the state did not move");
  }
  if (SteadyNow() >= job.deadline) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded,
                     "the deadline passed before the step was applied; the state did not move");
  }
  return absl::OkStatus();
}

LayerStep MakeStep(const StepJob& job, const StatePoolView& pool) {
  LayerStep step;
  step.weights = job.weights;
  step.pool = pool;
  step.kind = job.shape.kind;
  step.delta_rule = job.shape.delta_rule;
  return step;
}

// Appends the span's output to the reply to keep. For a long prefill this happens while the next segment runs.
void KeepOutput(const RowSpan& span) {
  StepRow& row = *span.row;
  if (!row.keep_output) return;
  if (row.reply == nullptr) {
    row.reply = std::make_shared<StoredReply>();
    row.reply->output.reserve(span.job->shape.OutputBytes(row.tokens));
  }
  row.reply->output.append(span.output(), span.output_bytes());
}

void CommitRow(StepRow& row, const StepOutcome& outcome, int64_t compute_time_us) {
  std::shared_ptr<StoredReply> reply = std::move(row.reply);
  if (row.keep_reply) {
    if (reply == nullptr) reply = std::make_shared<StoredReply>();  // the step has no tokens, or too many
    reply->output_dropped = !row.keep_output;
    reply->token_count = outcome.after.token_count;
    reply->compute_time_us = compute_time_us;
  }
  row.token_count = outcome.after.token_count;
  row.lease.Commit(outcome, std::move(reply));
}

BatchKind KindOf(const StepJob& job) {
  if (job.prefill) return BatchKind::kPrefill;
  return job.draft ? BatchKind::kDraft : BatchKind::kDecode;
}

void Count(BatchStats::OfKind& stats, int64_t steps, int64_t tokens) {
  stats.steps.fetch_add(steps, std::memory_order_relaxed);
  stats.tokens.fetch_add(tokens, std::memory_order_relaxed);
}

int64_t NanosBetween(SteadyTime begin, SteadyTime end) { return absl::ToInt64Nanoseconds(end - begin); }

void FailRow(StepRow& row, const absl::Status& status) {
  row.status = status;
  row.lease = StepLease();
}

void StampCopiedIn(LaunchStamps& stamps) {
  if (stamps.traced() && stamps.copied_in == 0) stamps.copied_in = TraceNow();
}

// Gives the launch's timestamps to its traced calls.
void TellTraces(IssuedLaunch& issued) {
  LaunchStamps& stamps = issued.stamps;
  if (stamps.launched != 0) stamps.begun = std::max(stamps.launched, stamps.computed - issued.compute_time_us * 1000);
  stamps.ender = ThisThreadLabel();
  LaunchStamps failed = stamps;
  failed.copied_out = 0;
  for (const IssuedLaunch::RowGroup& group : issued.groups) {
    for (const RowSpan& row : group.rows) {
      if (row.job->trace != nullptr) row.job->trace->AddLaunch(group.status.ok() ? stamps : failed);
    }
  }
}

// Returns the group for a row of the launch; adds one if necessary.
IssuedLaunch::RowGroup& GroupOf(IssuedLaunch& issued, const StepRow& row) {
  const StatePoolView& pool = row.lease.pool()->view();
  for (IssuedLaunch::RowGroup& group : issued.groups) {
    if (JoinPools(pool, &group.pool)) return group;
  }
  IssuedLaunch::RowGroup& group = issued.groups.emplace_back();
  group.pool = pool;
  return group;
}

// True if the row's acceptance moves entries of the log or folds it.
bool MovesDraft(const StepRow& row) {
  const Acceptance* const accept = row.accept_before;
  return accept != nullptr && DraftMoves::Needed(row.lease.before(), accept->accepted_tokens, accept->path);
}

// True if the row's tokens overwrite what a retry of its acceptance reads: entries of the draft, entries that were
// folded, or convolution columns before the draft.
bool OverwritesDraft(const StepRow& row, const LayerProgress& before, bool folded) {
  if (row.accept_before == nullptr || before.draft_length == 0 || row.tokens == 0) return false;
  const int32_t accepted = row.accept_before->accepted_tokens;
  const int32_t max_draft = row.lease.pool()->view().layout.max_draft();
  return folded || accepted < before.draft_length || accepted + row.tokens > max_draft;
}

// Copies log and convolution columns, which lie behind the base.
absl::Status CopyTail(Backend& backend, const StatePoolView& pool, int32_t to, int32_t from) {
  const int64_t tail = pool.layout.log_k_offset();
  return backend.Copy(pool.slot(to) + tail, pool.slot(from) + tail,
                      static_cast<size_t>(pool.layout.slot_floats() - tail) * sizeof(float));
}

// The start of prefills: each beginning row's state is copied, folded, to its slot aside. If the row accepts a draft
// first, that is done aside too.
struct PrefillStarts {
  explicit PrefillStarts(IssuedLaunch::RowGroup& part) : drafts(part.pool) {
    for (const RowSpan& span : part.rows) {
      if (span.first != 0) continue;
      StepLease& lease = span.row->lease;
      const auto slot = [&](int32_t index) { return SlotIn(part.pool, lease.pool()->view(), index); };
      int32_t source = slot(lease.slot());
      int32_t base = lease.slot() < 0 ? -1 : slot(lease.base_slot());
      const int32_t aside = slot(span.job->aside);
      if (const Acceptance* const accept = span.row->accept_before; accept != nullptr) {
        const bool moves = MovesDraft(*span.row);
        const AcceptedDraft accepted = drafts.Add(lease.before(), accept->accepted_tokens, accept->path,
                                                  {.slot = aside, .base_slot = base, .copy_tail_from = source});
        if (moves) tails.push_back({.to = aside, .from = std::exchange(source, aside)});
        if (accepted.folded) base = aside;
        lease.Accept(accepted.after);
      }
      sources.push_back(source);
      source_bases.push_back(base);
      asides.push_back(aside);
      log_lengths.push_back(lease.before().log_length);
    }
    fold = {.pool = part.pool,
            .count = static_cast<int32_t>(asides.size()),
            .src = sources.data(),
            .dst = asides.data(),
            .log_lengths = log_lengths.data(),
            .src_bases = sources == source_bases ? nullptr : source_bases.data()};
  }
  PrefillStarts(const PrefillStarts&) = delete;

  absl::Status Issue(Backend& backend) const {
    for (const Tail& tail : tails) GDN_RETURN_IF_ERROR(CopyTail(backend, fold.pool, tail.to, tail.from));
    if (!drafts.empty()) GDN_RETURN_IF_ERROR(drafts.Issue(backend));
    return backend.MaterializeState(fold);
  }

  struct Tail {
    int32_t to = 0;
    int32_t from = 0;
  };
  std::vector<Tail> tails;  // copied before the drafts are accepted
  DraftMoves drafts;
  std::vector<int32_t> sources, source_bases, asides, log_lengths;
  MaterializeStateParams fold;  // points into the vectors
};

}  // namespace

absl::StatusOr<StepSlots> PrepareDecodeSlot(Backend& backend, StepLease& lease) {
  GDN_ASSIGN_OR_RETURN(const StepSlots slots, lease.PrepareDecode());
  const StatePoolView& pool = lease.pool()->view();
  if (slots.zero) GDN_RETURN_IF_ERROR(backend.ZeroSlot(pool, slots.slot));
  if (slots.copy_tail_from >= 0) {
    GDN_RETURN_IF_ERROR(CopyTail(backend, pool, slots.slot, slots.copy_tail_from));
  }
  return slots;
}

absl::Status IssuedLaunch::StatusOf(size_t part) const {
  if (!stopped[part].ok()) return stopped[part];
  for (const RowGroup& group : groups) {
    for (const RowSpan& row : group.rows) {
      if (row.job == jobs[part].get()) return group.status;
    }
  }
  return absl::OkStatus();  // a segment without tokens
}

std::unique_ptr<IssuedLaunch> BatchExecutor::Issue(Launch launch, LaunchLane& lane,
                                                   absl::FunctionRef<void()> before_prefill) {
  auto issued = std::make_unique<IssuedLaunch>();
  issued->begin = SteadyNow();
  issued->launch = std::move(launch);
  issued->lane = &lane;
  for (const Launch::Part& part : issued->launch.parts) {
    issued->jobs.push_back(static_cast<StepJob&>(*part.step).self);
    const StepJob& job = *issued->jobs.back();
    if (part.first == 0) stats_.of(KindOf(job)).queue.Observe(NanosBetween(job.submitted, issued->begin));
    if (job.trace != nullptr && !issued->stamps.traced()) issued->stamps.Issued();
  }
  issued->stopped.resize(issued->jobs.size());
  issued->launch.prefill ? CollectPrefills(*issued) : CollectDecodes(*issued);
  if (issued->groups.empty()) return issued;

  absl::Status status = health_.status();
  if (status.ok()) status = backend_.UseThread();
  if (status.ok()) {
    std::vector<LanePart*> parts;
    for (IssuedLaunch::RowGroup& group : issued->groups) parts.push_back(&group);
    status = lane.Reserve(parts);
  }
  if (issued->launch.prefill && !backend_.info().unified_memory) {
    for (IssuedLaunch::RowGroup& group : issued->groups) {
      if (status.ok()) status = lane.SendAhead(group);
    }
    StampCopiedIn(issued->stamps);
    before_prefill();
  }
  for (IssuedLaunch::RowGroup& group : issued->groups) {
    group.status = status;
    if (!status.ok()) continue;
    group.status = issued->launch.prefill ? RunPrefill(group, *issued) : RunDecode(group, *issued);
    if (group.status.ok()) group.status = lane.StageOut(group);
  }
  if (LaunchStamps& stamps = issued->stamps; stamps.copied_in != 0) {
    // If operators compute when they are issued, the device's time begins with the first of them.
    stamps.launched = backend_.info().unified_memory ? stamps.copied_in : TraceNow();
  }
  if (!status.ok()) return issued;
  issued->launched = SteadyNow();
  CountIssued(*issued);
  // Make the fence even if a group failed half-way, because its operators may still write to the rows' slots.
  absl::StatusOr<Fence> fence = backend_.MakeFence();
  if (fence.ok()) {
    issued->fence = *fence;
    return issued;
  }
  for (IssuedLaunch::RowGroup& group : issued->groups) group.status.Update(fence.status());
  static_cast<void>(backend_.Synchronize());  // its error would be the same
  return issued;
}

void BatchExecutor::CollectDecodes(IssuedLaunch& issued) {
  for (const StepJobPtr& job : issued.jobs) {
    const absl::Status stopped = Stopped(*job);
    for (StepRow& row : job->rows) {
      // A row that another call has joined is computed all the same, because that call wants the result.
      if (!stopped.ok() && row.lease.TryCancel()) {
        row.status = stopped;
      } else if (row.tokens == 0 && !MovesDraft(row)) {
        if (row.accept_before != nullptr) {
          row.lease.Accept(AfterAcceptance(row.lease.before(), row.accept_before->accepted_tokens));
        }
        CommitRow(row, {.after = row.lease.before()}, 0);
        Count(stats_.of(KindOf(*job)), /*steps=*/1, /*tokens=*/0);
      } else {
        GroupOf(issued, row).rows.push_back({.job = job.get(), .row = &row, .first = 0, .tokens = row.tokens});
      }
    }
  }
}

void BatchExecutor::CollectPrefills(IssuedLaunch& issued) {
  for (size_t i = 0; i < issued.jobs.size(); ++i) {
    StepJob& job = *issued.jobs[i];
    StepRow& row = job.rows.front();
    const Launch::Part& part = issued.launch.parts[i];
    absl::Status& why = issued.stopped[i];
    why = Stopped(job);
    // The lease is kept until the earlier segments have run; until then another call may still join the step.
    if (!why.ok() && !row.lease.joined()) continue;
    why = absl::OkStatus();
    if (part.tokens == 0) continue;
    if (part.first == 0) {
      const absl::StatusOr<int32_t> aside = row.lease.PrepareAside();
      why = aside.status();
      if (!aside.ok()) continue;
      job.aside = *aside;
    }
    GroupOf(issued, row)
        .rows.push_back({.job = &job,
                         .row = &row,
                         .first = static_cast<int32_t>(part.first),
                         .tokens = static_cast<int32_t>(part.tokens)});
  }
}

absl::Status BatchExecutor::RunDecode(IssuedLaunch::RowGroup& part, IssuedLaunch& issued) {
  const StepJob& job = part.job();
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<int32_t> slots, base_slots, log_lengths;
  std::vector<int64_t> token_counts;
  std::vector<int32_t> parents;  // filled if some row is a tree
  std::vector<size_t> stepping;  // indices of the rows with tokens; the others only accept
  DraftMoves drafts(part.pool);
  for (size_t i = 0; i < part.rows.size(); ++i) {
    const RowSpan& span = part.rows[i];
    StepLease& lease = span.row->lease;
    GDN_ASSIGN_OR_RETURN(StepSlots where, PrepareDecodeSlot(backend_, lease));
    where.slot = SlotIn(part.pool, lease.pool()->view(), where.slot);
    where.base_slot = SlotIn(part.pool, lease.pool()->view(), where.base_slot);
    AcceptedDraft accepted;
    const LayerProgress before = lease.before();
    if (const Acceptance* const accept = span.row->accept_before; accept != nullptr) {
      accepted = drafts.Add(lease.before(), accept->accepted_tokens, accept->path, where);
      lease.Accept(accepted.after);
      if (accepted.folded) where.base_slot = where.slot;
    }
    // A new state has its own base from the start. Another state gets its own base when its log is full and folded,
    // which a draft does not do.
    const int32_t entries = job.draft ? 0 : lease.before().log_length + span.tokens;
    part.outcomes.push_back(
        {.after = lease.before(), .base_written = where.zero || accepted.folded || entries >= kLogCapacity});
    part.unrepeatable.push_back(where.CannotBeRepeated(entries));
    part.unrepeatable_acceptances.push_back(accepted.unrepeatable);
    part.overwrites_draft.push_back(where.copy_tail_from < 0 && OverwritesDraft(*span.row, before, accepted.folded));
    if (span.tokens == 0) continue;
    stepping.push_back(i);
    cu_seqlens.push_back(cu_seqlens.back() + span.tokens);
    slots.push_back(where.slot);
    base_slots.push_back(where.base_slot);
    token_counts.push_back(lease.before().token_count);
    log_lengths.push_back(lease.before().log_length);
    if (job.tree) span.row->AddParents(parents);
  }
  LayerStep step = MakeStep(job, part.pool);
  step.batch = {
      .sequences = static_cast<int32_t>(slots.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
  step.token_counts = token_counts.data();
  if (base_slots != slots) step.base_slots = base_slots.data();
  step.draft = job.draft;
  if (job.tree) step.draft_parents = parents.data();
  if (!stepping.empty()) GDN_RETURN_IF_ERROR(issued.lane->Gather(part, log_lengths.data(), /*fold=*/nullptr, &step));
  StampCopiedIn(issued.stamps);
  part.gathered = SteadyNow();
  if (!drafts.empty()) {
    // The acceptances change slots for good, so the tokens must not fail behind them for want of memory.
    const auto in_vain = [&]() -> absl::Status {
      GDN_RETURN_IF_ERROR(drafts.Issue(backend_));
      return stepping.empty() ? absl::OkStatus() : runner_.RehearseDecode(step, log_lengths.data());
    };
    GDN_RETURN_IF_ERROR(backend_.Prepare(in_vain));
    part.accepted = true;
    GDN_RETURN_IF_ERROR(drafts.Issue(backend_));
  }
  if (stepping.empty()) return absl::OkStatus();
  const absl::Status decoded = runner_.Decode(step, log_lengths.data());
  part.may_have_folded = runner_.may_have_folded();
  part.may_have_written = runner_.may_have_written();
  GDN_RETURN_IF_ERROR(decoded);
  for (size_t s = 0; s < stepping.size(); ++s) {
    const RowSpan& span = part.rows[stepping[s]];
    LayerProgress& after = part.outcomes[stepping[s]].after;
    if (job.draft) {
      after.draft_length = span.tokens;
      after.draft_parents.assign(span.row->parents.begin(), span.row->parents.end());
    } else {
      after.token_count += span.tokens;
      after.log_length = log_lengths[s];
    }
  }
  return absl::OkStatus();
}

absl::Status BatchExecutor::RunPrefill(IssuedLaunch::RowGroup& part, IssuedLaunch& issued) {
  const PrefillStarts starts(part);
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<int32_t> slots, call_tokens;
  std::vector<int64_t> token_counts;
  for (const RowSpan& span : part.rows) {
    cu_seqlens.push_back(cu_seqlens.back() + span.tokens);
    slots.push_back(SlotIn(part.pool, span.row->lease.pool()->view(), span.job->aside));
    call_tokens.push_back(span.row->tokens);
    token_counts.push_back(span.row->lease.before().token_count + span.first);
  }
  LayerStep step = MakeStep(part.job(), part.pool);
  step.batch = {
      .sequences = static_cast<int32_t>(slots.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
  step.token_counts = token_counts.data();
  step.call_tokens = call_tokens.data();
  GDN_RETURN_IF_ERROR(issued.lane->Gather(part, /*log_lengths=*/nullptr, &starts.fold, &step));
  StampCopiedIn(issued.stamps);
  part.gathered = SteadyNow();
  GDN_RETURN_IF_ERROR(starts.Issue(backend_));
  return runner_.Prefill(step);
}

void BatchExecutor::Wait(IssuedLaunch& issued) {
  const absl::Status waited = backend_.WaitFence(issued.fence);
  const SteadyTime end = issued.end = SteadyNow();
  if (issued.stamps.traced()) issued.stamps.computed = TraceNow();
  // Count the time that the device spent, without waiting, because the estimates for the next launches are learned from
  // it.
  SteadyTime begin = issued.groups.empty() ? issued.begin : end;
  for (const IssuedLaunch::RowGroup& group : issued.groups) begin = std::min(begin, group.gathered);
  {
    absl::MutexLock lock(&mu_);
    issued.compute_time_us = absl::ToInt64Microseconds(end - std::max(begin, last_end_));
    last_end_ = end;
  }
  for (IssuedLaunch::RowGroup& group : issued.groups) {
    group.status.Update(waited);
    group.status = health_.Report(std::move(group.status));
    // After a known failure of the device no later result is trusted.
    if (group.status.ok()) group.status = health_.status();
    if (!group.status.ok()) continue;
    issued.lane->Scatter(group);
    for (const RowSpan& span : group.rows) KeepOutput(span);
  }
  CountEnded(issued);
  if (!issued.stamps.traced()) return;
  issued.stamps.copied_out = TraceNow();
  TellTraces(issued);
}

void BatchExecutor::CountIssued(const IssuedLaunch& issued) {
  BatchStats::OfKind& stats = stats_.of(KindOf(*issued.jobs.front()));
  size_t rows = 0;
  SteadyTime gathered = SteadyTime::InfiniteFuture();
  for (const IssuedLaunch::RowGroup& group : issued.groups) {
    rows += group.rows.size();
    gathered = std::min(gathered, group.gathered);
  }
  stats.rows.Observe(static_cast<int64_t>(rows));
  if (gathered == SteadyTime::InfiniteFuture()) return;  // all groups failed before their inputs were sent
  stats.copy_in.Observe(NanosBetween(issued.begin, gathered));
  if (!backend_.info().unified_memory) stats.issue.Observe(NanosBetween(gathered, issued.launched));
}

void BatchExecutor::CountEnded(const IssuedLaunch& issued) {
  const auto is_ok = [](const IssuedLaunch::RowGroup& group) { return group.status.ok(); };
  if (!std::ranges::any_of(issued.groups, is_ok)) return;
  BatchStats::OfKind& stats = stats_.of(KindOf(*issued.jobs.front()));
  stats.compute.Observe(1000 * issued.compute_time_us);
  stats.copy_out.Observe(NanosBetween(issued.end, SteadyNow()));
}

void BatchExecutor::EndDecodes(IssuedLaunch& issued) {
  for (IssuedLaunch::RowGroup& group : issued.groups) {
    if (group.status.ok()) {
      int64_t tokens = 0;
      for (const RowSpan& span : group.rows) tokens += span.tokens;
      Count(stats_.of(KindOf(*issued.jobs.front())), static_cast<int64_t>(group.rows.size()), tokens);
    }
    for (size_t i = 0; i < group.rows.size(); ++i) {
      const RowSpan& span = group.rows[i];
      if (group.status.ok()) {
        CommitRow(*span.row, group.outcomes[i], issued.compute_time_us);
      } else if ((group.may_have_folded && group.unrepeatable[i]) ||
                 (group.may_have_written && group.overwrites_draft[i]) ||
                 (group.accepted && group.unrepeatable_acceptances[i])) {
        span.row->status = span.row->lease.Lose(group.status);
      } else {
        FailRow(*span.row, group.status);
      }
    }
  }
  const int64_t committed = issued.stamps.traced() ? TraceNow() : 0;
  for (const StepJobPtr& job : issued.jobs) {
    job->compute_time_us = issued.compute_time_us;
    if (job->trace == nullptr) continue;
    const auto is_ok = [](const StepRow& row) { return row.status.ok(); };
    if (std::ranges::any_of(job->rows, is_ok)) job->trace->committed = committed;
  }
}

void BatchExecutor::EndPrefill(StepJob& job, const absl::Status& status) {
  StepRow& row = job.rows.front();
  if (!status.ok()) return FailRow(row, status);
  LayerProgress after = row.lease.before();
  if (row.tokens > 0) after = {.token_count = after.token_count + row.tokens};
  CommitRow(row, {.after = after, .base_written = row.tokens > 0, .prefill = true}, job.compute_time_us);
  Count(stats_.of(BatchKind::kPrefill), /*steps=*/1, row.tokens);
  if (job.trace != nullptr) job.trace->committed = TraceNow();
}

}  // namespace gdn
