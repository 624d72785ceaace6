// Where recurrent states live on the device: pools of slots in backend memory under one budget of bytes.
//
// A session claims its slots when it is made and takes them one by one as layers are first used, so a step never fails
// for want of memory. Slots are shared between forks and freed with their last share. A pool also has a few spare slots
// outside any claim, for prefills that write aside and swap.
// Thread safety: all classes are safe from any thread. Ownership: a pool lives as long as a claim or share of it, and
// beyond that until its memory is wanted; the store and the backend must outlive all of them.
//
//   StateStore store(backend, {.budget_bytes = int64_t{8} << 30, .max_draft = 8});
//   GDN_ASSIGN_OR_RETURN(std::vector<SlotClaim> claims, store.Reserve(dims, /*count=*/36));
//   SlotRef slot = std::move(claims[0]).Take();  // slot.index() in slot.view()
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
  // Prefills that may write aside at the same time.
  static constexpr int32_t kSpareSlots = 2;

  StatePool(class StateStore* store, DeviceBuffer memory, const StateLayout& layout, int32_t slot_count);

  const StatePoolView& view() const { return view_; }
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
  const DeviceBuffer memory_;
  const StatePoolView view_;
  mutable absl::Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);        // those that were ever taken; the others are untouched memory
  std::vector<int32_t> returned_ ABSL_GUARDED_BY(mu_);  // reused before untouched memory is
  int32_t spares_ ABSL_GUARDED_BY(mu_) = 0;
  int32_t claimed_ ABSL_GUARDED_BY(mu_) = 0;  // claims, and slots that were one
};

struct StateStoreOptions {
  int64_t budget_bytes = 0;  // of all claims together
  int32_t max_draft = 8;     // tokens of a decode row; sizes the log and the convolution columns
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
