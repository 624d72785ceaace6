#include "server/batcher/accept_execution.h"

#include <map>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/batcher/batch_execution.h"

namespace gdn {
namespace {

// True if the path is the draft's first tokens, so that nothing has to be moved.
bool IsInPlace(absl::Span<const int32_t> path) {
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

// The rows whose states are in one pool.
struct PoolRows {
  explicit PoolRows(const StatePoolView& pool) : moves(pool) {}

  DraftMoves moves;
  std::vector<size_t> members;          // indices in Work::moved
  std::vector<AcceptedDraft> accepted;  // parallel to members
  bool begun = false;
};

struct Work {
  std::vector<AcceptRow> counted, moved;
  std::vector<PoolRows> pools;  // for the rows in `moved`
};

absl::Status MoveAndFold(Backend& backend, Work& work) {
  std::map<StatePool*, PoolRows> by_pool;
  for (size_t i = 0; i < work.moved.size(); ++i) {
    AcceptRow& row = work.moved[i];
    StatePool* const pool = row.lease.pool().get();
    PoolRows& rows = by_pool.try_emplace(pool, pool->view()).first->second;
    GDN_ASSIGN_OR_RETURN(const StepSlots where, PrepareDecodeSlot(backend, row.lease));
    rows.members.push_back(i);
    rows.accepted.push_back(rows.moves.Add(row.lease.before(), row.accepted_tokens, row.path, where));
  }
  for (auto& [pool, rows] : by_pool) work.pools.push_back(std::move(rows));
  const auto in_vain = [&]() -> absl::Status {
    for (const PoolRows& rows : work.pools) GDN_RETURN_IF_ERROR(rows.moves.Issue(backend));
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(backend.Prepare(in_vain));
  for (PoolRows& rows : work.pools) {
    rows.begun = true;
    GDN_RETURN_IF_ERROR(rows.moves.Issue(backend));
  }
  return absl::OkStatus();
}

void Commit(Work& work) {
  for (AcceptRow& row : work.counted)
    row.lease.Commit({.after = AfterAcceptance(row.lease.before(), row.accepted_tokens)}, nullptr);
  for (const PoolRows& rows : work.pools) {
    for (size_t m = 0; m < rows.members.size(); ++m) {
      const AcceptedDraft& accepted = rows.accepted[m];
      work.moved[rows.members[m]].lease.Commit({.after = accepted.after, .base_written = accepted.folded}, nullptr);
    }
  }
}

// Ends all leases. Sessions whose rows had begun unrepeatable work are lost.
void GiveUp(Work& work, const absl::Status& why) {
  for (const PoolRows& rows : work.pools) {
    for (size_t m = 0; rows.begun && m < rows.members.size(); ++m) {
      if (rows.accepted[m].unrepeatable) static_cast<void>(work.moved[rows.members[m]].lease.Lose(why));
    }
  }
  work.counted.clear();
  work.moved.clear();
}

}  // namespace

LayerProgress AfterAcceptance(const LayerProgress& before, int32_t tokens) {
  return {.token_count = before.token_count + tokens, .log_length = (before.log_length + tokens) % kLogCapacity};
}

bool DraftMoves::Needed(const LayerProgress& before, int32_t tokens, absl::Span<const int32_t> path) {
  return before.log_length + tokens >= kLogCapacity || !IsInPlace(path);
}

AcceptedDraft DraftMoves::Add(const LayerProgress& before, int32_t tokens, absl::Span<const int32_t> path,
                              const StepSlots& where) {
  AcceptedDraft accepted{.after = AfterAcceptance(before, tokens)};
  if (!Needed(before, tokens, path)) return accepted;
  const int32_t entries = before.log_length + tokens;
  slots_.push_back(where.slot);
  base_slots_.push_back(where.base_slot);
  log_lengths_.push_back(entries);
  paths_.push_back(
      {.slot = where.slot, .token_count = before.token_count, .log_length = before.log_length, .path = path});
  accepted.folded = entries >= kLogCapacity;
  accepted.unrepeatable = where.CannotBeRepeated(entries) || (where.copy_tail_from < 0 && !IsInPlace(path));
  return accepted;
}

absl::Status DraftMoves::Issue(Backend& backend) const {
  std::vector<int32_t> log_lengths = log_lengths_;
  GDN_RETURN_IF_ERROR(MoveDraftPaths(backend, pool_, paths_));
  return FoldAccepted(backend, {.pool = pool_,
                                .count = static_cast<int32_t>(slots_.size()),
                                .slots = slots_.data(),
                                .base_slots = slots_ == base_slots_ ? nullptr : base_slots_.data(),
                                .log_lengths = log_lengths.data()});
}

Task<absl::Status> AcceptDrafts(Batcher& batcher, std::vector<AcceptRow> rows, std::function<void()> committing) {
  Work work;
  for (AcceptRow& row : rows) {
    const bool moves = DraftMoves::Needed(row.lease.before(), row.accepted_tokens, row.path);
    (moves ? work.moved : work.counted).push_back(std::move(row));
  }
  absl::Status status;
  if (!work.moved.empty()) {
    const auto move = [&work](Backend& backend) { return MoveAndFold(backend, work); };
    status = co_await batcher.Run(move);
  }
  if (!status.ok()) {
    GiveUp(work, status);
    co_return status;
  }
  committing();
  Commit(work);
  co_return status;
}

}  // namespace gdn
