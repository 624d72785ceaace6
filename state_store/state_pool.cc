#include "state_store/state_pool.h"

#include <cstdlib>

#include "base/error.h"
#include "state_store/state_store.h"

namespace gdn {

SlotRef::SlotRef(const SlotRef& other) : pool_(other.pool_), index_(other.index_) {
  if (pool_ != nullptr) pool_->Share(index_);
}

SlotRef& SlotRef::operator=(SlotRef other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(index_, other.index_);
  return *this;
}

SlotRef::~SlotRef() {
  if (pool_ != nullptr) pool_->Unshare(index_);
}

const StatePoolView& SlotRef::view() const { return pool_->view(); }

bool SlotRef::exclusive() const { return pool_->IsExclusive(index_); }

SlotClaim& SlotClaim::operator=(SlotClaim&& other) noexcept {
  std::swap(pool_, other.pool_);
  return *this;
}

SlotClaim::~SlotClaim() {
  if (pool_ != nullptr) pool_->GiveUpClaim();
}

SlotRef SlotClaim::Take() && {
  SlotRef slot = pool_->TakeClaimed();
  pool_ = nullptr;  // the slot has the claim now
  return slot;
}

SlotClaim SlotClaim::Return(SlotRef slot) {
  std::shared_ptr<StatePool> pool = std::move(slot.pool_);
  const bool claimed = pool->Unclaim(std::exchange(slot.index_, -1));
  return claimed ? SlotClaim(std::move(pool)) : SlotClaim();
}

namespace {

// Returns the address of the first slot: a multiple of the slot size, so that one numbering covers the slots of several
// pools in a launch.
float* FirstSlot(const DeviceBuffer& memory, const StateLayout& layout) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  const auto bytes = static_cast<uintptr_t>(layout.slot_bytes());
  return memory.floats() + ((address + bytes - 1) / bytes * bytes - address) / sizeof(float);
}

}  // namespace

StatePool::StatePool(StateStore* store, int32_t device, DeviceBuffer memory, const StateLayout& layout,
                     int32_t slot_count)
    : store_(store),
      device_(device),
      memory_(std::move(memory)),
      view_{.layout = layout, .data = FirstSlot(memory_, layout), .slot_count = slot_count} {}

bool StatePool::TryClaim(int32_t count) {
  absl::MutexLock lock(&mu_);
  if (claimed_ + count > view_.slot_count - spare_slots()) return false;
  claimed_ += count;
  return true;
}

void StatePool::GiveUpClaim() {
  {
    absl::MutexLock lock(&mu_);
    --claimed_;
  }
  store_->Unreserve(view_.layout.slot_bytes());
}

SlotRef StatePool::PopLocked(bool spare) {
  int32_t index = 0;
  if (!returned_.empty()) {
    index = returned_.back();
    returned_.pop_back();
  } else {
    // The budget bounds claims, and spares have a fixed number. So this is a bug, and the next step would write out of
    // bounds.
    if (static_cast<int32_t>(slots_.size()) >= view_.slot_count) std::abort();
    index = static_cast<int32_t>(slots_.size());
    slots_.emplace_back();
  }
  slots_[static_cast<size_t>(index)] = {.shares = 1, .spare = spare};
  return SlotRef(shared_from_this(), index);
}

SlotRef StatePool::TakeClaimed() {
  absl::MutexLock lock(&mu_);
  return PopLocked(/*spare=*/false);
}

absl::StatusOr<SlotRef> StatePool::TakeSpare() {
  absl::MutexLock lock(&mu_);
  if (spares_ >= spare_slots()) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     "no spare state slot is free; another prefill is writing aside, try again shortly");
  }
  ++spares_;
  return PopLocked(/*spare=*/true);
}

void StatePool::ExchangeSpare(const SlotRef& slot, const SlotRef& spare) {
  absl::MutexLock lock(&mu_);
  std::swap(slots_[static_cast<size_t>(slot.index())].spare, slots_[static_cast<size_t>(spare.index())].spare);
}

bool StatePool::Unclaim(int32_t index) {
  absl::MutexLock lock(&mu_);
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.shares != 1) std::abort();  // a bug: two owners would have the slot
  slot.shares = 0;
  if (slot.spare) --spares_;
  returned_.push_back(index);
  return !slot.spare;
}

void StatePool::Share(int32_t index) {
  absl::MutexLock lock(&mu_);
  ++slots_[static_cast<size_t>(index)].shares;
}

void StatePool::Unshare(int32_t index) {
  {
    absl::MutexLock lock(&mu_);
    Slot& slot = slots_[static_cast<size_t>(index)];
    if (--slot.shares > 0) return;
    returned_.push_back(index);
    if (slot.spare) {
      --spares_;
      return;
    }
  }
  GiveUpClaim();
}

bool StatePool::IsExclusive(int32_t index) const {
  absl::MutexLock lock(&mu_);
  return slots_[static_cast<size_t>(index)].shares == 1;
}

}  // namespace gdn
