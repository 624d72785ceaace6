#include "state_store/state_store.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Prefills and exports that may write aside at the same time, per pool.
constexpr int32_t kSpareSlots = 2;

}  // namespace

SlotLease& SlotLease::operator=(SlotLease&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::move(other.pool_);
    index_ = std::exchange(other.index_, -1);
    spare_ = std::exchange(other.spare_, false);
  }
  return *this;
}

void SlotLease::Release() {
  if (pool_ != nullptr) pool_->Return(index_, spare_);
  pool_ = nullptr;
  index_ = -1;
  spare_ = false;
}

SlotReservation& SlotReservation::operator=(SlotReservation&& other) noexcept {
  if (this != &other) {
    Release();
    store_ = std::exchange(other.store_, nullptr);
    pool_ = std::move(other.pool_);
    count_ = std::exchange(other.count_, 0);
  }
  return *this;
}

SlotReservation::~SlotReservation() { Release(); }

void SlotReservation::Release() {
  if (store_ != nullptr) {
    store_->Unreserve(bytes());
    pool_->Unreserve(count_);
  }
  store_ = nullptr;
  pool_ = nullptr;
}

SlotLease SlotReservation::Take() const { return pool_->Take(); }

absl::StatusOr<SlotLease> SlotReservation::TakeSpare() const { return pool_->TakeSpare(); }

void SlotReservation::Swap(SlotLease& taken, SlotLease spare) {
  std::swap(taken.spare_, spare.spare_);
  taken = std::move(spare);
}

const StatePoolView& SlotReservation::view() const { return pool_->view(); }

StatePool::StatePool(DeviceBuffer memory, const StateLayout& layout, int32_t slot_count)
    : memory_(std::move(memory)), view_{.layout = layout, .data = memory_.floats(), .slot_count = slot_count} {}

bool StatePool::TryReserve(int32_t count) {
  absl::MutexLock lock(&mu_);
  if (reserved_ + count > view_.slot_count - kSpareSlots) return false;
  reserved_ += count;
  return true;
}

void StatePool::Unreserve(int32_t count) {
  absl::MutexLock lock(&mu_);
  reserved_ -= count;
}

int32_t StatePool::PopLocked() {
  ++taken_;
  if (!returned_.empty()) {
    const int32_t index = returned_.back();
    returned_.pop_back();
    return index;
  }
  return untouched_++;
}

SlotLease StatePool::Take() {
  absl::MutexLock lock(&mu_);
  // Reservations are bounded by the budget and spares by kSpareSlots, so this is a defect, and the next step would
  // write out of bounds.
  if (taken_ >= view_.slot_count) std::abort();
  return SlotLease(shared_from_this(), PopLocked(), /*spare=*/false);
}

absl::StatusOr<SlotLease> StatePool::TakeSpare() {
  absl::MutexLock lock(&mu_);
  if (spares_ >= kSpareSlots) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     "no spare state slot is free; another prefill or export is writing aside, try again shortly");
  }
  ++spares_;
  return SlotLease(shared_from_this(), PopLocked(), /*spare=*/true);
}

void StatePool::Return(int32_t index, bool spare) {
  absl::MutexLock lock(&mu_);
  if (spare) --spares_;
  --taken_;
  returned_.push_back(index);
}

absl::StatusOr<SlotReservation> StateStore::Reserve(const LayerDims& dims, int32_t count) {
  GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(dims, options_.max_draft));
  absl::MutexLock lock(&mu_);
  const int64_t needed = count * layout.slot_bytes();
  const int64_t available = options_.budget_bytes - used_bytes_;
  if (needed > available) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     StrCat("this session's states need ", needed, " bytes and ", available, " of the budget of ",
                            options_.budget_bytes, " are free; delete sessions or raise --state-bytes"),
                     {{"needed", StrCat(needed)}, {"available", StrCat(available)}});
  }
  std::erase_if(pools_, [](const std::weak_ptr<StatePool>& weak) { return weak.expired(); });
  std::shared_ptr<StatePool> pool;
  int64_t allocated = 0;
  for (const auto& weak : pools_) {
    auto candidate = weak.lock();
    if (candidate == nullptr) continue;
    allocated += (candidate->view().slot_count - kSpareSlots) * candidate->view().layout.slot_bytes();
    if (candidate->view().layout == layout && candidate->TryReserve(count)) {
      pool = std::move(candidate);
      break;
    }
  }
  if (pool == nullptr) {
    GDN_ASSIGN_OR_RETURN(pool, MakePool(layout, count, allocated));
    pools_.push_back(pool);
  }
  used_bytes_ += needed;
  return SlotReservation(this, std::move(pool), count);
}

absl::StatusOr<std::shared_ptr<StatePool>> StateStore::MakePool(const StateLayout& layout, int32_t count,
                                                                int64_t allocated) {
  // Memory that is committed as slots are touched costs nothing to reserve: such a pool is made for the whole budget.
  // Elsewhere it takes half of what no pool has yet, so that sessions of another shape still find room.
  int64_t bytes = options_.budget_bytes;
  if (!backend_.info().lazy_memory) {
    const int64_t room = options_.budget_bytes - allocated;
    const int64_t needed = count * layout.slot_bytes();
    if (needed > room) {
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                       StrCat("this session's states need ", needed, " bytes and ", std::max<int64_t>(room, 0),
                              " are free: sessions of other shapes hold the rest; delete them or raise --state-bytes"),
                       {{"needed", StrCat(needed)}, {"available", StrCat(std::max<int64_t>(room, 0))}});
    }
    bytes = std::max(needed, room / 2);
  }
  const int64_t slots = bytes / layout.slot_bytes() + kSpareSlots;
  const auto slot_count = static_cast<int32_t>(std::min<int64_t>(slots, std::numeric_limits<int32_t>::max()));
  GDN_ASSIGN_OR_RETURN(DeviceBuffer memory,
                       DeviceBuffer::Make(backend_, static_cast<size_t>(slot_count * layout.slot_bytes())));
  auto pool = std::make_shared<StatePool>(std::move(memory), layout, slot_count);
  pool->TryReserve(count);
  return pool;
}

int64_t StateStore::used_bytes() const {
  absl::MutexLock lock(&mu_);
  return used_bytes_;
}

void StateStore::Unreserve(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  used_bytes_ -= bytes;
}

}  // namespace gdn
