// The slots of one layout in backend memory. A claim is the right to take a slot; a share is a reference to a slot.
//
// Forks share slots, and a slot is freed with its last share. A pool also has a few spare slots that no claim can take,
// for prefills, which write to a spare slot and then swap it in.
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
  int32_t index() const { return index_; }  // -1 if not valid
  const std::shared_ptr<StatePool>& pool() const { return pool_; }
  const StatePoolView& view() const;
  // True if this is the only share, so the slot may be written.
  bool exclusive() const;

  friend bool operator==(const SlotRef& a, const SlotRef& b) { return a.pool_ == b.pool_ && a.index_ == b.index_; }

 private:
  friend class StatePool;
  friend class SlotClaim;
  SlotRef(std::shared_ptr<StatePool> pool, int32_t index) : pool_(std::move(pool)), index_(index) {}

  std::shared_ptr<StatePool> pool_;
  int32_t index_ = -1;
};

// The right to one slot of a pool. It counts against the budget until the claim is destroyed, or its slot is freed.
class SlotClaim {
 public:
  SlotClaim() = default;
  SlotClaim(SlotClaim&& other) noexcept : pool_(std::move(other.pool_)) {}
  SlotClaim& operator=(SlotClaim&& other) noexcept;
  ~SlotClaim();

  bool valid() const { return pool_ != nullptr; }
  const std::shared_ptr<StatePool>& pool() const { return pool_; }
  // Takes the slot; its contents are undefined. Uses up the claim, which must be valid.
  SlotRef Take() &&;
  // Turns a slot back into a claim. The slot must be valid and have no other share; with one, the process aborts. A
  // spare slot becomes free, and the result is not valid.
  static SlotClaim Return(SlotRef slot);

 private:
  friend class StateStore;
  explicit SlotClaim(std::shared_ptr<StatePool> pool) : pool_(std::move(pool)) {}

  std::shared_ptr<StatePool> pool_;
};

// The slots of one layout. Use them through SlotRef and SlotClaim.
class StatePool : public std::enable_shared_from_this<StatePool> {
 public:
  // `slot_count` includes the spare slots. `memory` must have room for one slot more, because the first slot begins at
  // a multiple of the slot size.
  StatePool(class StateStore* store, int32_t device, DeviceBuffer memory, const StateLayout& layout,
            int32_t slot_count);

  const StatePoolView& view() const { return view_; }
  int32_t device() const { return device_; }  // StateStoreOptions::device
  // Number of spare slots: an eighth of the slots, but 2 to 8. Each lets one prefill run. Claims cannot take them.
  int32_t spare_slots() const { return SpareSlots(view_.slot_count); }
  static int32_t SpareSlots(int64_t slot_count) {
    return static_cast<int32_t>(std::clamp<int64_t>(slot_count / 8, kLeastSpareSlots, 8));
  }
  static constexpr int32_t kLeastSpareSlots = 2;
  // Takes a spare slot, which is free again with its last share. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if all are
  // in use.
  absl::StatusOr<SlotRef> TakeSpare();
  // Swaps which of the two slots of this pool counts as spare: the claim of `slot` then stands for `spare`, and `slot`
  // is the spare one. `slot` must have only one share.
  void ExchangeSpare(const SlotRef& slot, const SlotRef& spare);

 private:
  friend class SlotRef;
  friend class SlotClaim;
  friend class StateStore;
  struct Slot {
    int32_t shares = 0;
    bool spare = false;
  };

  bool TryClaim(int32_t count);  // counts `count` more claims; false, with nothing changed, if fewer are left
  // Counts one claim less and returns its bytes to the store's budget: a claim was destroyed, or its slot was freed.
  void GiveUpClaim();
  SlotRef TakeClaimed();  // aborts the process if no slot is left, because then a claim was counted wrongly
  // Drops the only share of a slot, for SlotClaim::Return. True if the slot's claim goes on; false if it was a spare
  // slot.
  bool Unclaim(int32_t index);
  void Share(int32_t index);
  // Drops one share. The last one frees the slot, and gives up its claim if the slot is not a spare one.
  void Unshare(int32_t index);
  bool IsExclusive(int32_t index) const;
  SlotRef PopLocked(bool spare) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  class StateStore* const store_;
  const int32_t device_;
  const DeviceBuffer memory_;
  const StatePoolView view_;
  mutable absl::Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);        // slots that were ever taken; the rest is untouched memory
  std::vector<int32_t> returned_ ABSL_GUARDED_BY(mu_);  // free slots, reused before untouched memory
  int32_t spares_ ABSL_GUARDED_BY(mu_) = 0;             // spare slots in use
  int32_t claimed_ ABSL_GUARDED_BY(mu_) = 0;            // number of claims plus slots that were taken with a claim
};

}  // namespace gdn
