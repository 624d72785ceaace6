// Where recurrent states live: pools of slots in backend memory under one budget of bytes.
//
// Sessions reserve their slots whole when they are made and take them one by one as layers are first used, so a step
// never fails for want of memory. A pool also has a few spare slots outside any reservation, for prefills that write
// aside and swap.
// Thread safety: all classes are safe from any thread. Ownership: a pool lives as long as a reservation or lease of it;
// the store and the backend must outlive both.
//
//   StateStore store(backend, {.budget_bytes = int64_t{8} << 30, .max_draft = 8});
//   GDN_ASSIGN_OR_RETURN(SlotReservation slots, store.Reserve(dims, /*count=*/36));
//   SlotLease slot = slots.Take();  // slot.index() in slots.view()
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"

namespace gdn {

class StatePool;

// One slot; returned to its pool on destruction.
class SlotLease {
 public:
  SlotLease() = default;
  SlotLease(SlotLease&& other) noexcept { *this = std::move(other); }
  SlotLease& operator=(SlotLease&& other) noexcept;
  ~SlotLease() { Release(); }

  bool valid() const { return pool_ != nullptr; }
  int32_t index() const { return index_; }  // -1 where not valid
  void Release();

 private:
  friend class StatePool;
  friend class SlotReservation;
  SlotLease(std::shared_ptr<StatePool> pool, int32_t index, bool spare)
      : pool_(std::move(pool)), index_(index), spare_(spare) {}

  std::shared_ptr<StatePool> pool_;
  int32_t index_ = -1;
  bool spare_ = false;  // counted against the pool's spares, not against a reservation
};

// A number of slots of one pool that are there for the taking, counted against the budget until destruction.
class SlotReservation {
 public:
  SlotReservation() = default;
  SlotReservation(SlotReservation&& other) noexcept { *this = std::move(other); }
  SlotReservation& operator=(SlotReservation&& other) noexcept;
  ~SlotReservation();

  // The caller must not hold more than count() leases from Take() at a time. Contents of a taken slot are undefined.
  SlotLease Take() const;
  // A spare slot for writing aside; RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where all spares are out.
  absl::StatusOr<SlotLease> TakeSpare() const;
  // Puts `spare` in the place of `taken`, whose slot becomes the spare and is returned.
  static void Swap(SlotLease& taken, SlotLease spare);

  const StatePoolView& view() const;
  const std::shared_ptr<StatePool>& pool() const { return pool_; }
  int32_t count() const { return count_; }
  int64_t bytes() const { return int64_t{count_} * view().layout.slot_bytes(); }

 private:
  friend class StateStore;
  SlotReservation(class StateStore* store, std::shared_ptr<StatePool> pool, int32_t count)
      : store_(store), pool_(std::move(pool)), count_(count) {}
  void Release();

  class StateStore* store_ = nullptr;
  std::shared_ptr<StatePool> pool_;
  int32_t count_ = 0;
};

// The slots of one layout. Used through the two classes above.
class StatePool : public std::enable_shared_from_this<StatePool> {
 public:
  StatePool(DeviceBuffer memory, const StateLayout& layout, int32_t slot_count);

  const StatePoolView& view() const { return view_; }
  SlotLease Take();  // aborts the process where no slot is left: a broken reservation
  absl::StatusOr<SlotLease> TakeSpare();

  // Counts `count` slots as promised; false where fewer are left.
  bool TryReserve(int32_t count);
  void Unreserve(int32_t count);

 private:
  friend class SlotLease;
  void Return(int32_t index, bool spare);
  int32_t PopLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const DeviceBuffer memory_;
  const StatePoolView view_;
  absl::Mutex mu_;
  std::vector<int32_t> returned_ ABSL_GUARDED_BY(mu_);  // reused before untouched memory is
  int32_t untouched_ ABSL_GUARDED_BY(mu_) = 0;          // slots from here on have never been taken
  int32_t taken_ ABSL_GUARDED_BY(mu_) = 0;              // spares included
  int32_t spares_ ABSL_GUARDED_BY(mu_) = 0;
  int32_t reserved_ ABSL_GUARDED_BY(mu_) = 0;  // promised to reservations
};

struct StateStoreOptions {
  int64_t budget_bytes = 0;  // of all reservations together
  int32_t max_draft = 8;     // tokens of a decode row; sizes the log and the convolution columns
};

class StateStore {
 public:
  StateStore(Backend& backend, const StateStoreOptions& options) : backend_(backend), options_(options) {}
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // INVALID_ARGUMENT for bad dims; RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED: needed, available) where the budget has
  // no room.
  absl::StatusOr<SlotReservation> Reserve(const LayerDims& dims, int32_t count);

  const StateStoreOptions& options() const { return options_; }
  int64_t used_bytes() const;

 private:
  friend class SlotReservation;
  void Unreserve(int64_t bytes);
  absl::StatusOr<std::shared_ptr<StatePool>> MakePool(const StateLayout& layout, int32_t count, int64_t allocated);

  Backend& backend_;
  const StateStoreOptions options_;
  mutable absl::Mutex mu_;
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::weak_ptr<StatePool>> pools_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
