#include "state_store/state_store.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {

absl::Status StateStore::NoRoom(int64_t needed, int64_t available, std::string_view why, absl::StatusCode code) const {
  return MakeError(code, reason::kStateBudgetExhausted,
                   StrCat("these states need ", needed, " bytes and ", available, " of the device's budget of ",
                          options_.budget_bytes, " are free", why,
                          "; delete sessions, raise --device-state-bytes, or give states a lower tier to rest in"),
                   {{"needed", StrCat(needed)}, {"available", StrCat(available)}});
}

std::vector<SlotClaim> StateStore::ClaimsOf(const std::shared_ptr<StatePool>& pool, int32_t count) {
  std::vector<SlotClaim> claims;
  claims.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) claims.push_back(SlotClaim(pool));
  return claims;
}

absl::StatusOr<std::vector<SlotClaim>> StateStore::Reserve(const LayerDims& dims, int32_t count) {
  GDN_ASSIGN_OR_RETURN(const StateLayout layout, LayoutOf(dims));
  std::shared_ptr<StatePool> pool;
  {
    absl::MutexLock lock(&mu_);
    const int64_t needed = count * layout.slot_bytes();
    const int64_t available = options_.budget_bytes - used_bytes_;
    if (needed > available) return NoRoom(needed, available, "");
    for (const std::shared_ptr<StatePool>& candidate : pools_) {
      if (candidate->view().layout != layout || !candidate->TryClaim(count)) continue;
      pool = candidate;
      break;
    }
    if (pool == nullptr) {
      std::erase_if(pools_, [](const std::shared_ptr<StatePool>& idle) { return idle.use_count() == 1; });
      int64_t allocated = 0;
      for (const std::shared_ptr<StatePool>& other : pools_) {
        allocated += (other->view().slot_count - StatePool::kLeastSpareSlots) * other->view().layout.slot_bytes();
      }
      GDN_ASSIGN_OR_RETURN(pool, MakePool(layout, count, allocated));
      pools_.push_back(pool);
    }
    used_bytes_ += needed;
  }
  return ClaimsOf(pool, count);
}

absl::StatusOr<std::vector<SlotClaim>> StateStore::ReserveIn(const std::shared_ptr<StatePool>& pool, int32_t count) {
  const int64_t needed = count * pool->view().layout.slot_bytes();
  {
    absl::MutexLock lock(&mu_);
    const int64_t available = options_.budget_bytes - used_bytes_;
    if (needed > available) return NoRoom(needed, available, "");
    if (!pool->TryClaim(count)) {
      return NoRoom(needed, available, ", but not beside the states they begin from",
                    absl::StatusCode::kFailedPrecondition);
    }
    used_bytes_ += needed;
  }
  return ClaimsOf(pool, count);
}

absl::StatusOr<std::shared_ptr<StatePool>> StateStore::MakePool(const StateLayout& layout, int32_t count,
                                                                int64_t allocated) {
  // If memory is committed only when slots are used, reserving it costs nothing, and the pool gets the whole budget.
  // Otherwise a pool gets half of what is left, so that sessions of another shape still find space.
  int64_t bytes = options_.budget_bytes;
  if (!backend_.info().lazy_memory) {
    const int64_t room = options_.budget_bytes - allocated;
    const int64_t needed = count * layout.slot_bytes();
    if (needed > room) return NoRoom(needed, std::max<int64_t>(room, 0), ": sessions of other shapes hold the rest");
    bytes = std::max(needed, room / 2);
  }
  // kLeastSpareSlots of the spare slots are on top of the budget, so that even the smallest pool holds what the budget
  // says. The further spares of a larger pool are within the budget. If memory is committed on use, all spares are on
  // top.
  int64_t slots = bytes / layout.slot_bytes() + StatePool::kLeastSpareSlots;
  if (const int64_t least = bytes / layout.slot_bytes() + StatePool::SpareSlots(slots); backend_.info().lazy_memory) {
    slots = least;
  } else if (slots - StatePool::SpareSlots(slots) < count) {
    slots = count + StatePool::SpareSlots(least);
  }
  const auto slot_count = static_cast<int32_t>(std::min<int64_t>(slots, std::numeric_limits<int32_t>::max()));
  GDN_ASSIGN_OR_RETURN(DeviceBuffer memory, DeviceBuffer::Make(backend_, static_cast<size_t>((int64_t{slot_count} + 1) *
                                                                                             layout.slot_bytes())));
  auto pool = std::make_shared<StatePool>(this, options_.device, std::move(memory), layout, slot_count);
  pool->TryClaim(count);
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
