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

// Folds what is full. `outcomes` is parallel to rows.
absl::Status Fold(Backend& backend, std::vector<AcceptRow>& rows, std::vector<StepOutcome>& outcomes) {
  std::map<StatePool*, std::vector<size_t>> by_pool;
  for (size_t i = 0; i < rows.size(); ++i) by_pool[rows[i].lease.pool().get()].push_back(i);
  for (const auto& [pool, members] : by_pool) {
    std::vector<int32_t> slots, base_slots, log_lengths;
    for (const size_t i : members) {
      GDN_ASSIGN_OR_RETURN(const StepSlots where, PrepareDecodeSlot(backend, rows[i].lease));
      slots.push_back(where.slot);
      base_slots.push_back(where.base_slot);
      log_lengths.push_back(AcceptedLog(rows[i]));
    }
    GDN_RETURN_IF_ERROR(FoldAccepted(backend, {.pool = pool->view(),
                                               .count = static_cast<int32_t>(members.size()),
                                               .slots = slots.data(),
                                               .base_slots = slots == base_slots ? nullptr : base_slots.data(),
                                               .log_lengths = log_lengths.data()}));
    for (size_t m = 0; m < members.size(); ++m) {
      outcomes[members[m]] = {.after = After(rows[members[m]], log_lengths[m]), .base_written = true};
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AcceptDrafts(Batcher& batcher, std::vector<AcceptRow> rows, std::function<void()> committing,
                  std::function<void(absl::Status)> done) {
  struct Work {
    std::vector<AcceptRow> counted, folded;
    std::vector<StepOutcome> outcomes;  // of folded
  };
  auto work = std::make_shared<Work>();
  for (AcceptRow& row : rows)
    (AcceptedLog(row) < kLogCapacity ? work->counted : work->folded).push_back(std::move(row));
  const auto commit_counted = [committing = std::move(committing)](Work& w) {
    committing();
    for (AcceptRow& row : w.counted) row.lease.Commit({.after = After(row, AcceptedLog(row))}, nullptr);
  };
  if (work->folded.empty()) {
    commit_counted(*work);
    return done(absl::OkStatus());
  }
  work->outcomes.resize(work->folded.size());
  batcher.Post([work](Backend& backend) { return Fold(backend, work->folded, work->outcomes); },
               [work, commit_counted, done = std::move(done)](absl::Status status) {
                 if (status.ok()) {
                   commit_counted(*work);
                   for (size_t i = 0; i < work->folded.size(); ++i) {
                     work->folded[i].lease.Commit(work->outcomes[i], nullptr);
                   }
                 } else {
                   work->counted.clear();
                   work->folded.clear();
                 }
                 done(std::move(status));
               });
}

}  // namespace gdn
