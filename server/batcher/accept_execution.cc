#include "server/batcher/accept_execution.h"

#include <map>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "kernels/layer/accept_draft.h"

namespace gdn {
namespace {

LayerProgress After(const AcceptRow& row, int32_t log_length) {
  return {.token_count = row.lease.before().token_count + row.accepted_tokens, .log_length = log_length};
}

int32_t AcceptedLog(const AcceptRow& row) { return row.lease.before().log_length + row.accepted_tokens; }

// True if the path is the draft's first tokens, so that nothing has to be moved.
bool IsInPlace(const std::vector<int32_t>& path) {
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

bool OnlyCounts(const AcceptRow& row) { return AcceptedLog(row) < kLogCapacity && IsInPlace(row.path); }

// The rows whose states are in one pool, and their slots.
struct PoolRows {
  std::shared_ptr<StatePool> pool;
  std::vector<size_t> members;  // indices in Work::moved; the vectors below are parallel to it
  std::vector<int32_t> slots, base_slots, log_lengths;
  std::vector<DraftPath> paths;
  std::vector<uint8_t> folded;
  std::vector<bool> unrepeatable;  // true: the work on the row cannot be repeated once it has begun
  bool begun = false;

  // Moves the entries of paths to the front, and folds full logs.
  absl::Status Run(Backend& backend) {
    folded.assign(members.size(), 0);
    GDN_RETURN_IF_ERROR(MoveDraftPaths(backend, pool->view(), paths));
    return FoldAccepted(backend, {.pool = pool->view(),
                                  .count = static_cast<int32_t>(members.size()),
                                  .slots = slots.data(),
                                  .base_slots = slots == base_slots ? nullptr : base_slots.data(),
                                  .log_lengths = log_lengths.data(),
                                  .folded = folded.data()});
  }
};

struct Work {
  std::vector<AcceptRow> counted, moved;
  std::vector<PoolRows> pools;  // for the rows in `moved`
};

absl::Status AddRow(Backend& backend, AcceptRow& row, PoolRows& rows) {
  GDN_ASSIGN_OR_RETURN(const StepSlots where, PrepareDecodeSlot(backend, row.lease));
  rows.slots.push_back(where.slot);
  rows.base_slots.push_back(where.base_slot);
  rows.log_lengths.push_back(AcceptedLog(row));
  const LayerProgress& before = row.lease.before();
  rows.paths.push_back(
      {.slot = where.slot, .token_count = before.token_count, .log_length = before.log_length, .path = row.path});
  rows.unrepeatable.push_back(where.CannotBeRepeated(AcceptedLog(row)) ||
                              (where.copy_tail_from < 0 && !IsInPlace(row.path)));
  return absl::OkStatus();
}

absl::Status MoveAndFold(Backend& backend, Work& work) {
  std::map<StatePool*, PoolRows> by_pool;
  for (size_t i = 0; i < work.moved.size(); ++i) {
    PoolRows& rows = by_pool[work.moved[i].lease.pool().get()];
    if (rows.pool == nullptr) rows.pool = work.moved[i].lease.pool();
    rows.members.push_back(i);
    GDN_RETURN_IF_ERROR(AddRow(backend, work.moved[i], rows));
  }
  for (auto& [pool, rows] : by_pool) work.pools.push_back(std::move(rows));
  const auto in_vain = [&]() -> absl::Status {
    for (PoolRows rows : work.pools) GDN_RETURN_IF_ERROR(rows.Run(backend));
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(backend.Prepare(in_vain));
  for (PoolRows& rows : work.pools) {
    rows.begun = true;
    GDN_RETURN_IF_ERROR(rows.Run(backend));
  }
  return absl::OkStatus();
}

void CommitCounted(Work& work) {
  for (AcceptRow& row : work.counted) row.lease.Commit({.after = After(row, AcceptedLog(row))}, nullptr);
}

void CommitMoved(Work& work) {
  for (const PoolRows& rows : work.pools) {
    for (size_t m = 0; m < rows.members.size(); ++m) {
      AcceptRow& row = work.moved[rows.members[m]];
      row.lease.Commit({.after = After(row, rows.log_lengths[m]), .base_written = rows.folded[m] != 0}, nullptr);
    }
  }
}

// Ends all leases. Sessions whose rows had begun unrepeatable work are lost.
void GiveUp(Work& work, const absl::Status& why) {
  for (const PoolRows& rows : work.pools) {
    for (size_t m = 0; rows.begun && m < rows.members.size(); ++m) {
      if (rows.unrepeatable[m]) static_cast<void>(work.moved[rows.members[m]].lease.Lose(why));
    }
  }
  work.counted.clear();
  work.moved.clear();
}

}  // namespace

Task<absl::Status> AcceptDrafts(Batcher& batcher, std::vector<AcceptRow> rows, std::function<void()> committing) {
  Work work;
  for (AcceptRow& row : rows) (OnlyCounts(row) ? work.counted : work.moved).push_back(std::move(row));
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
  CommitCounted(work);
  CommitMoved(work);
  co_return status;
}

}  // namespace gdn
