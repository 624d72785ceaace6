// Where recurrent states live on the device: pools of slots in backend memory under one budget of bytes.
//
// A session claims its slots when it is made and takes them one by one as layers are first used, so a step never fails
// for want of memory.
// Thread safety: safe from any thread. Ownership: a pool lives as long as a claim or share of it, and beyond that until
// its memory is wanted; the store and the backend must outlive all of them.
//
//   StateStore store(backend, {.budget_bytes = int64_t{8} << 30, .max_draft = 8});
//   GDN_ASSIGN_OR_RETURN(std::vector<SlotClaim> claims, store.Reserve(dims, /*count=*/36));
//   SlotRef slot = std::move(claims[0]).Take();  // slot.index() in slot.view()
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "state_store/state_pool.h"

namespace gdn {

struct StateStoreOptions {
  int64_t budget_bytes = 0;  // of all claims together
  int32_t max_draft = 8;     // tokens of a decode row; sizes the log and the convolution columns
  DType base_dtype = DType::kF32;
  int32_t device = 0;  // the backend's number among the server's
};

class StateStore {
 public:
  StateStore(Backend& backend, const StateStoreOptions& options) : backend_(backend), options_(options) {}
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Claims on slots of one pool. INVALID_ARGUMENT for bad dims; RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED: needed,
  // available) where the budget has no room.
  absl::StatusOr<std::vector<SlotClaim>> Reserve(const LayerDims& dims, int32_t count);
  // The same, in the pool of slots that are there already.
  absl::StatusOr<std::vector<SlotClaim>> ReserveIn(const std::shared_ptr<StatePool>& pool, int32_t count);

  const StateStoreOptions& options() const { return options_; }
  // Of slots for states of these dims. INVALID_ARGUMENT for bad ones.
  absl::StatusOr<StateLayout> LayoutOf(const LayerDims& dims) const {
    return StateLayout::Make(dims, options_.max_draft, options_.base_dtype);
  }
  int64_t used_bytes() const;

 private:
  friend class StatePool;
  void Unreserve(int64_t bytes);
  absl::Status NoRoom(int64_t needed, int64_t available, std::string_view why) const;
  absl::StatusOr<std::shared_ptr<StatePool>> MakePool(const StateLayout& layout, int32_t count, int64_t allocated);

  Backend& backend_;
  const StateStoreOptions options_;
  mutable absl::Mutex mu_;
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // One that nobody uses stays until another is to be made: fresh memory costs more than most copies into it.
  std::vector<std::shared_ptr<StatePool>> pools_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
