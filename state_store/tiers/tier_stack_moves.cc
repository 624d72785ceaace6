// How states go into tiers, down from one to the next, and out of those that could not be reached.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/tier_stack.h"
#include "state_store/tiers/tier_stack_owner.h"

namespace gdn {

namespace {

// Erasures that one call makes up for, so that no call becomes slow for those before it.
constexpr size_t kOwedPerCall = 8;

bool HasAllBases(const SessionImage& image) {
  return std::all_of(image.layers.begin(), image.layers.end(), [](const LayerImage& layer) { return layer.has_base; });
}

}  // namespace

void TierStack::Acquire(const StateKey& key) {
  absl::MutexLock lock(&mu_);
  while (!TryAcquire(key)) relinquished_.Wait(&mu_);
}

bool TierStack::TryAcquire(const StateKey& key) { return owned_.emplace(key.principal, key.id).second; }

void TierStack::Relinquish(const StateKey& key) {
  absl::MutexLock lock(&mu_);
  owned_.erase({key.principal, key.id});
  if (const auto it = entries_.find(key); it != entries_.end() && it->second.copies == 0) entries_.erase(it);
  relinquished_.SignalAll();
}

absl::StatusOr<StoreResult> TierStack::StoreAt(size_t tier, const StateKey& key, const SessionImagePtr& image) {
  GDN_RETURN_IF_ERROR(TakesStates(tier));
  GDN_RETURN_IF_ERROR(EraseOwed(tier, key));
  const int64_t bytes = image->bytes();
  bool again = false;
  while (true) {
    absl::StatusOr<StoreResult> result = tiers_[tier]->Store(key, image);
    Note(tier, result.status());
    if (result.ok()) {
      absl::MutexLock lock(&mu_);
      Entry& entry = entries_[key];
      entry.copies |= uint32_t{1} << tier;
      if (tiers_[tier]->durable()) entry.checkpoint = tier;
      return result;
    }
    if (absl::IsUnavailable(result.status()) && tiers_[tier]->durable()) {
      // Whether it took the state before it went away is not known.
      absl::MutexLock lock(&mu_);
      entries_[key].copies |= uint32_t{1} << tier;
    }
    if (!absl::IsResourceExhausted(result.status())) return result;
    const absl::Status room = MakeRoom(tier, bytes);
    if (room.ok()) continue;
    const TierUsage usage = tiers_[tier]->usage();
    if (usage.limit_bytes == 0 || usage.used_bytes + bytes <= usage.limit_bytes) {
      // Its budget has room: others have left it meanwhile, or what it writes to is full, which only writing finds out.
      if (!std::exchange(again, true) && usage.limit_bytes > 0) continue;
      BackOff(tier, result.status());
    }
    return absl::IsUnavailable(room) ? room : result.status();
  }
}

absl::Status TierStack::StoreFrom(size_t first, const StateKey& key, const SessionImagePtr& image) {
  const bool whole = HasAllBases(*image);
  absl::Status unavailable;
  std::string full;
  for (size_t t = first; t < tiers_.size(); ++t) {
    if (!whole && t != durable_) continue;
    absl::Status status = StoreAt(t, key, image).status();
    if (status.ok()) {
      uint32_t others = 0;
      {
        absl::MutexLock lock(&mu_);
        Entry& entry = entries_[key];
        SetPlace(key, entry, t, image->bytes());
        others = entry.copies & ~(uint32_t{1} << t);
        // A durable copy stays until a newer one is durable.
        if (!tiers_[t]->durable()) others &= ~DurableTiers();
      }
      EraseCopies(key, others);
      return absl::OkStatus();
    }
    if (absl::IsUnavailable(status)) {
      unavailable.Update(status);
    } else if (absl::IsResourceExhausted(status)) {
      StrAppend(&full, "; ", tiers_[t]->name(), ": ", status.message());
    } else {
      return status;
    }
  }
  if (!unavailable.ok()) return unavailable;
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                   StrCat("no tier has room for the ", image->bytes(), " bytes of ", key.ToString(),
                          full.empty() ? "; the server has no further tier" : full));
}

absl::StatusOr<SessionImagePtr> TierStack::LoadFrom(size_t tier, const StateKey& key) {
  absl::StatusOr<SessionImagePtr> image = tiers_[tier]->Load(key);
  Note(tier, image.status());
  return image;
}

void TierStack::EraseCopies(const StateKey& key, uint32_t tiers) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if ((tiers >> t & 1) == 0) continue;
    {
      absl::MutexLock lock(&mu_);
      Entry& entry = entries_[key];
      entry.copies &= ~(uint32_t{1} << t);
      if (entry.checkpoint == t) entry.checkpoint = kNowhere;
      Owe(t, key, /*all=*/false);
    }
    if (absl::IsUnavailable(TakesStates(t))) continue;
    EraseOwed(t, key).IgnoreError();  // it is still owed then
  }
}

absl::Status TierStack::EraseOwed(size_t tier, const StateKey& key) {
  std::vector<std::pair<StateKey, bool>> owed;
  {
    absl::MutexLock lock(&mu_);
    const std::map<StateKey, bool>& all = levels_[tier].owed;
    auto it = all.lower_bound({.principal = key.principal, .id = key.id, .checkpoint = ""});
    for (; it != all.end() && it->first.principal == key.principal && it->first.id == key.id; ++it) {
      owed.emplace_back(*it);
    }
  }
  for (const auto& [erased, all] : owed) {
    const absl::Status status = all ? tiers_[tier]->EraseAll(erased) : tiers_[tier]->Erase(erased);
    Note(tier, status);
    GDN_RETURN_IF_ERROR(status);
    absl::MutexLock lock(&mu_);
    levels_[tier].owed.erase(erased);
    if (absl::IsResourceExhausted(levels_[tier].error)) levels_[tier].retry_at = absl::InfinitePast();
  }
  return absl::OkStatus();
}

void TierStack::EraseSomeOwed() {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (absl::IsUnavailable(TakesStates(t))) continue;
    std::vector<StateKey> owed;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [key, all] : levels_[t].owed) {
        if (owed.size() == kOwedPerCall) break;
        if (TryAcquire(key)) owed.push_back(key);
      }
    }
    bool reached = true;
    for (const StateKey& key : owed) {
      Owner owner(*this, key, Owner::kAcquired);
      if (reached) reached = EraseOwed(t, key).ok();
    }
  }
}

absl::Status TierStack::MakeRoom(size_t tier, int64_t bytes) {
  absl::Status none = absl::ResourceExhaustedError("no room can be made");
  const TierUsage usage = tiers_[tier]->usage();
  int64_t missing = bytes;
  if (usage.limit_bytes > 0) {
    if (bytes > usage.limit_bytes) return none;
    if (usage.used_bytes + bytes > usage.limit_bytes) missing = usage.used_bytes + bytes - usage.limit_bytes;
  }
  {
    absl::MutexLock lock(&mu_);
    // What would not make room enough is left where it is.
    if (levels_[tier].bytes < missing && levels_[tier].leaving == 0) return none;
  }
  return MoveOut(tier, missing);
}

absl::Status TierStack::MoveOut(size_t tier, int64_t bytes) {
  absl::Status error = absl::ResourceExhaustedError("no room can be made");
  if (tier + 1 == tiers_.size()) return error;
  int64_t moved = 0;
  std::set<StateKey> tried;
  while (moved < bytes) {
    StateKey key;
    int64_t key_bytes = 0;
    {
      absl::MutexLock lock(&mu_);
      Level& level = levels_[tier];
      const auto next = std::find_if(level.used.begin(), level.used.end(), [&](const StateKey& candidate) {
        mu_.AssertHeld();
        return !tried.contains(candidate) && TryAcquire(candidate);
      });
      if (next == level.used.end()) {
        if (moved > 0 || level.leaving == 0) break;
        // Others are making room here. They wait only for tiers below this one, so this ends.
        relinquished_.Wait(&mu_);
        return absl::OkStatus();
      }
      key = *next;
      key_bytes = entries_.at(key).bytes;
      ++level.leaving;
    }
    absl::Status status;
    {
      Owner owner(*this, key, Owner::kAcquired);
      const absl::StatusOr<SessionImagePtr> image = LoadFrom(tier, key);
      status = image.ok() ? StoreFrom(tier + 1, key, *image) : image.status();
      absl::MutexLock lock(&mu_);
      Level& level = levels_[tier];
      --level.leaving;
      // A state that cannot be read is not tried first again.
      if (!status.ok()) level.used.splice(level.used.end(), level.used, entries_.at(key).used);
    }
    if (status.ok()) {
      moved += key_bytes;
      continue;
    }
    tried.insert(key);
    error = status;
    if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) break;
  }
  return moved > 0 ? absl::OkStatus() : error;
}

absl::Status TierStack::TakesStates(size_t tier) const {
  absl::MutexLock lock(&mu_);
  const Level& level = levels_[tier];
  return absl::Now() < level.retry_at ? level.error : absl::OkStatus();
}

void TierStack::Note(size_t tier, const absl::Status& status) {
  if (absl::IsUnavailable(status)) return BackOff(tier, status);
  absl::MutexLock lock(&mu_);
  Level& level = levels_[tier];
  if (status.ok() && absl::IsUnavailable(level.error)) level.retry_at = absl::InfinitePast();
}

void TierStack::BackOff(size_t tier, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  levels_[tier].error = status;
  levels_[tier].retry_at = absl::Now() + options_.retry_after;
}

bool TierStack::HasRoomFrom(size_t first, int64_t bytes) const {
  for (size_t t = first; t < tiers_.size(); ++t) {
    const TierUsage usage = tiers_[t]->usage();
    if (usage.limit_bytes > 0 && usage.limit_bytes - usage.used_bytes < bytes) continue;
    if (TakesStates(t).ok()) return true;
  }
  return false;
}

size_t TierStack::IndexOf(const StateTier& tier) const {
  const auto it = std::find(tiers_.begin(), tiers_.end(), &tier);
  return it == tiers_.end() ? kNowhere : static_cast<size_t>(it - tiers_.begin());
}

uint32_t TierStack::DurableTiers() const {
  uint32_t tiers = 0;
  for (size_t t = 0; t < tiers_.size(); ++t) tiers |= static_cast<uint32_t>(tiers_[t]->durable()) << t;
  return tiers;
}

void TierStack::SetPlace(const StateKey& key, Entry& entry, size_t place, int64_t bytes) {
  if (entry.place != kNowhere) {
    levels_[entry.place].used.erase(entry.used);
    levels_[entry.place].bytes -= entry.bytes;
  }
  entry.place = place;
  entry.bytes = bytes;
  if (place == kNowhere) return;
  Level& level = levels_[place];
  entry.used = level.used.insert(level.used.end(), key);
  level.bytes += bytes;
}

void TierStack::Owe(size_t tier, const StateKey& key, bool all) {
  std::map<StateKey, bool>& owed = levels_[tier].owed;
  if (all) {
    auto it = owed.lower_bound(key);
    while (it != owed.end() && it->first.principal == key.principal && it->first.id == key.id) it = owed.erase(it);
  } else if (const auto it = owed.find({.principal = key.principal, .id = key.id, .checkpoint = ""});
             it != owed.end() && it->second) {
    return;
  }
  if (owed.size() >= options_.max_owed_erasures && !owed.contains(key)) owed.erase(owed.begin());
  owed[key] = all;
}

}  // namespace gdn
