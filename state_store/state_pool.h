// The slots of one layout in backend memory, and who may use each: claims before they are taken, shares after.
//
// Slots are shared between forks and freed with their last share. A pool also has a few spare slots outside any claim,
// for prefills that write aside and swap.
// Thread safety: all classes are safe from any thread. Ownership: claims and shares keep their pool; its StateStore and
// the backend must outlive it.
//
//   SlotRef slot = std::move(claim).Take();  // slot.index() in slot.view()
//   SlotRef share = slot;                    // neither is exclusive() now
#pragma once

#include <algorithm>
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

// A share of one slot. A copy is another share.
class SlotRef {
 public:
  SlotRef() = default;
  SlotRef(const SlotRef& other);
  SlotRef(SlotRef&& other) noexcept : pool_(std::move(other.pool_)), index_(std::exchange(other.index_, -1)) {}
  SlotRef& operator=(SlotRef other) noexcept;
  ~SlotRef();

  bool valid() const { return pool_ != nullptr; }
  int32_t index() const { return index_; }  // -1 where not valid
  const std::shared_ptr<StatePool>& pool() const { return pool_; }
  const StatePoolView& view() const;
  // Whether nobody else has a share: the slot may be written.
  bool exclusive() const;

  friend bool operator==(const SlotRef& a, const SlotRef& b) { return a.pool_ == b.pool_ && a.index_ == b.index_; }

 private:
  friend class StatePool;
  friend class SlotClaim;
  SlotRef(std::shared_ptr<StatePool> pool, int32_t index) : pool_(std::move(pool)), index_(index) {}

  std::shared_ptr<StatePool> pool_;
  int32_t index_ = -1;
};

// The right to one slot of a pool, counted against the budget until it is given up or the slot that it became is freed.
class SlotClaim {
 public:
  SlotClaim() = default;
  SlotClaim(SlotClaim&& other) noexcept : pool_(std::move(other.pool_)) {}
  SlotClaim& operator=(SlotClaim&& other) noexcept;
  ~SlotClaim();

  bool valid() const { return pool_ != nullptr; }
  const std::shared_ptr<StatePool>& pool() const { return pool_; }
  // The slot; its contents are undefined. The claim is used up.
  SlotRef Take() &&;
  // The claim again, for a slot that was taken and is not wanted after all: `slot` has no other share.
  static SlotClaim Return(SlotRef slot);

 private:
  friend class StateStore;
  explicit SlotClaim(std::shared_ptr<StatePool> pool) : pool_(std::move(pool)) {}

  std::shared_ptr<StatePool> pool_;
};

// The slots of one layout. Used through the two classes above.
class StatePool : public std::enable_shared_from_this<StatePool> {
 public:
  // `memory` has room for a slot more: where the first one begins follows from its address.
  StatePool(class StateStore* store, int32_t device, DeviceBuffer memory, const StateLayout& layout,
            int32_t slot_count);

  const StatePoolView& view() const { return view_; }
  int32_t device() const { return device_; }  // StateStoreOptions::device
  // Prefills that may write aside at the same time: an eighth of the slots, but 2 to 8. They are no claim's.
  int32_t spare_slots() const { return SpareSlots(view_.slot_count); }
  static int32_t SpareSlots(int64_t slot_count) {
    return static_cast<int32_t>(std::clamp<int64_t>(slot_count / 8, kLeastSpareSlots, 8));
  }
  static constexpr int32_t kLeastSpareSlots = 2;
  // A spare slot for writing aside; RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where all spares are out.
  absl::StatusOr<SlotRef> TakeSpare();
  // Puts `spare` in the place of `slot`, which becomes the spare: the claim that `slot` came from is now spare's.
  // `slot` has one share.
  void ExchangeSpare(const SlotRef& slot, const SlotRef& spare);

 private:
  friend class SlotRef;
  friend class SlotClaim;
  friend class StateStore;
  struct Slot {
    int32_t shares = 0;
    bool spare = false;
  };

  bool TryClaim(int32_t count);  // false where fewer are left
  void GiveUpClaim();
  SlotRef TakeClaimed();  // aborts the process where no slot is left: a broken claim
  bool Unclaim(int32_t index);
  void Share(int32_t index);
  void Unshare(int32_t index);
  bool IsExclusive(int32_t index) const;
  SlotRef PopLocked(bool spare) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  class StateStore* const store_;
  const int32_t device_;
  const DeviceBuffer memory_;
  const StatePoolView view_;
  mutable absl::Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);        // those that were ever taken; the others are untouched memory
  std::vector<int32_t> returned_ ABSL_GUARDED_BY(mu_);  // reused before untouched memory is
  int32_t spares_ ABSL_GUARDED_BY(mu_) = 0;
  int32_t claimed_ ABSL_GUARDED_BY(mu_) = 0;  // claims, and slots that were one
};

}  // namespace gdn
