// The recurrent states on a device: pools of slots in backend memory, under one budget of bytes.
//
// A session claims all its slots when it is made, and takes each one when its layer is first used. So a step never
// fails because slots have run out.
// Thread safety: safe from any thread. Ownership: claims and shares keep their pool alive. An unused pool is kept until
// its memory is needed. The store and the backend must outlive all claims and shares.
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
  int64_t budget_bytes = 0;        // most bytes of all claims together
  int32_t max_draft = 8;           // most tokens of a decode row; sizes the log and the convolution columns
  DType base_dtype = DType::kF32;  // dtype of the bases in slots: kF32 or kBF16
  int32_t device = 0;              // index of the backend among the server's devices
};

class StateStore {
 public:
  StateStore(Backend& backend, const StateStoreOptions& options) : backend_(backend), options_(options) {}
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Returns claims on `count` slots of one pool, which is made if none has room. INVALID_ARGUMENT for bad dims.
  // RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED: needed, available) if the budget has no room. Errors of
  // Backend::Allocate.
  absl::StatusOr<std::vector<SlotClaim>> Reserve(const LayerDims& dims, int32_t count);
  // Returns claims on `count` more slots of an existing pool, for sessions that share slots of that pool.
  // RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if the budget has no room; FAILED_PRECONDITION
  // (STATE_BUDGET_EXHAUSTED) if it has room, but the pool has too few free slots, so that only a copy in another pool
  // may fit.
  absl::StatusOr<std::vector<SlotClaim>> ReserveIn(const std::shared_ptr<StatePool>& pool, int32_t count);

  const StateStoreOptions& options() const { return options_; }
  // Returns the layout of slots for states of these dims. INVALID_ARGUMENT for bad dims.
  absl::StatusOr<StateLayout> LayoutOf(const LayerDims& dims) const {
    return StateLayout::Make(dims, options_.max_draft, options_.base_dtype);
  }
  int64_t used_bytes() const;

 private:
  friend class StatePool;
  // Gives the bytes of a claim that has ended back to the budget.
  void Unreserve(int64_t bytes);
  static std::vector<SlotClaim> ClaimsOf(const std::shared_ptr<StatePool>& pool, int32_t count);
  absl::Status NoRoom(int64_t needed, int64_t available, std::string_view why,
                      absl::StatusCode code = absl::StatusCode::kResourceExhausted) const;
  absl::StatusOr<std::shared_ptr<StatePool>> MakePool(const StateLayout& layout, int32_t count, int64_t allocated);

  Backend& backend_;
  const StateStoreOptions options_;
  mutable absl::Mutex mu_;
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Unused pools stay until another pool must be made, because allocating memory costs more than most copies into it.
  std::vector<std::shared_ptr<StatePool>> pools_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
