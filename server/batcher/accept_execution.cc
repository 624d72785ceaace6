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

// Whether the path's tokens are where they would be as the draft's first.
bool IsInPlace(const std::vector<int32_t>& path) {
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

bool OnlyCounts(const AcceptRow& row) { return AcceptedLog(row) < kLogCapacity && IsInPlace(row.path); }

// Moves what a path takes and folds what is full. `outcomes` is parallel to rows.
absl::Status MoveAndFold(Backend& backend, std::vector<AcceptRow>& rows, std::vector<StepOutcome>& outcomes) {
  std::map<StatePool*, std::vector<size_t>> by_pool;
  for (size_t i = 0; i < rows.size(); ++i) by_pool[rows[i].lease.pool().get()].push_back(i);
  for (const auto& [pool, members] : by_pool) {
    std::vector<int32_t> slots, base_slots, log_lengths;
    std::vector<DraftPath> paths;
    for (const size_t i : members) {
      GDN_ASSIGN_OR_RETURN(const StepSlots where, PrepareDecodeSlot(backend, rows[i].lease));
      slots.push_back(where.slot);
      base_slots.push_back(where.base_slot);
      log_lengths.push_back(AcceptedLog(rows[i]));
      const LayerProgress& before = rows[i].lease.before();
      paths.push_back({.slot = where.slot,
                       .token_count = before.token_count,
                       .log_length = before.log_length,
                       .path = rows[i].path});
    }
    GDN_RETURN_IF_ERROR(MoveDraftPaths(backend, pool->view(), paths));
    std::vector<uint8_t> folded(members.size());
    GDN_RETURN_IF_ERROR(FoldAccepted(backend, {.pool = pool->view(),
                                               .count = static_cast<int32_t>(members.size()),
                                               .slots = slots.data(),
                                               .base_slots = slots == base_slots ? nullptr : base_slots.data(),
                                               .log_lengths = log_lengths.data(),
                                               .folded = folded.data()}));
    for (size_t m = 0; m < members.size(); ++m) {
      outcomes[members[m]] = {.after = After(rows[members[m]], log_lengths[m]), .base_written = folded[m] != 0};
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AcceptDrafts(Batcher& batcher, std::vector<AcceptRow> rows, std::function<void()> committing,
                  std::function<void(absl::Status)> done) {
  struct Work {
    std::vector<AcceptRow> counted, moved;
    std::vector<StepOutcome> outcomes;  // of moved
  };
  auto work = std::make_shared<Work>();
  for (AcceptRow& row : rows) (OnlyCounts(row) ? work->counted : work->moved).push_back(std::move(row));
  const auto commit_counted = [committing = std::move(committing)](Work& w) {
    committing();
    for (AcceptRow& row : w.counted) row.lease.Commit({.after = After(row, AcceptedLog(row))}, nullptr);
  };
  if (work->moved.empty()) {
    commit_counted(*work);
    return done(absl::OkStatus());
  }
  work->outcomes.resize(work->moved.size());
  batcher.Post([work](Backend& backend) { return MoveAndFold(backend, work->moved, work->outcomes); },
               [work, commit_counted, done = std::move(done)](absl::Status status) {
                 if (status.ok()) {
                   commit_counted(*work);
                   for (size_t i = 0; i < work->moved.size(); ++i) {
                     work->moved[i].lease.Commit(work->outcomes[i], nullptr);
                   }
                 } else {
                   work->counted.clear();
                   work->moved.clear();
                 }
                 done(std::move(status));
               });
}

}  // namespace gdn
