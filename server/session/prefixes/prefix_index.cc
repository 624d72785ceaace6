#include "server/session/prefixes/prefix_index.h"

#include <algorithm>
#include <limits>

namespace gdn {

void PrefixIndex::Place::GiveUp() {
  if (PrefixIndex* const index = std::exchange(index_, nullptr); index != nullptr) index->GiveUp(*this);
}

void PrefixIndex::Place::Keep(int64_t tokens, SessionImagePtr image) {
  std::exchange(index_, nullptr)->Keep(*this, tokens, std::move(image));
}

int64_t PrefixIndex::RoomBytes() const {
  const int64_t left = options_.left_bytes ? options_.left_bytes() : std::numeric_limits<int64_t>::max();
  return std::max<int64_t>(0, std::min(options_.limit_bytes, left));
}

PrefixStart PrefixIndex::Find(const std::vector<PrefixKey>& keys) const {
  absl::MutexLock lock(&mu_);
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    const auto it = entries_.find(*key);
    if (it == entries_.end() || it->second.image == nullptr) continue;
    return {.key = *key, .tokens = it->second.tokens, .image = it->second.image};
  }
  return {};
}

void PrefixIndex::NoteStart(const PrefixStart& start) {
  if (start.image == nullptr) {
    misses_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  hits_.fetch_add(1, std::memory_order_relaxed);
  tokens_skipped_.fetch_add(start.tokens, std::memory_order_relaxed);
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(start.key);
  if (it != entries_.end() && it->second.image != nullptr) UseLocked(it->second);
}

void PrefixIndex::UseLocked(Entry& entry) {
  std::list<PrefixKey>& list = by_use_.at(entry.account.get());
  list.splice(list.end(), list, entry.place);
  entry.used = options_.clock.Now();
}

PrefixIndex::Beginning PrefixIndex::Begin(const PrefixKey& key, const std::string& principal,
                                          const ByteAccountPtr& account, int64_t bytes) {
  if (!on() || bytes > RoomBytes()) {
    absl::MutexLock lock(&mu_);
    return {.place = {}, .there = entries_.contains(key)};
  }
  ByteCharge charge;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (const auto it = entries_.find(key); it != entries_.end()) {
        if (it->second.image != nullptr) UseLocked(it->second);
        return {.place = {}, .there = true};
      }
      if (charge.valid() && used_bytes_ + bytes <= RoomBytes()) {
        used_bytes_ += bytes;
        Entry& entry = entries_[key];
        entry.principal = principal;
        entry.account = account;
        entry.charge = std::move(charge);
        entry.serial = ++begun_;
        return {.place = Place(this, key, entry.serial), .there = false};
      }
    }
    if (charge.valid()) {
      if (!EvictOne(nullptr)) return {};  // the other entries are being copied, or sessions took the space
      continue;
    }
    auto charged = ledger_.ChargeWithinQuota(BytePool::kHost, account, bytes);
    if (charged.ok()) {
      charge = *std::move(charged);
    } else if (!EvictOne(account.get())) {
      return {};
    }
  }
}

PrefixIndex::Entry* PrefixIndex::EntryOf(const Place& place) {
  const auto it = entries_.find(place.key_);
  return it == entries_.end() || it->second.serial != place.serial_ ? nullptr : &it->second;
}

void PrefixIndex::Keep(const Place& place, int64_t tokens, SessionImagePtr image) {
  {
    absl::MutexLock lock(&mu_);
    Entry* const entry = EntryOf(place);
    if (entry == nullptr) return;
    entry->tokens = tokens;
    entry->image = std::move(image);
    entry->used = options_.clock.Now();
    std::list<PrefixKey>& list = by_use_[entry->account.get()];
    entry->place = list.insert(list.end(), place.key_);
  }
  kept_.fetch_add(1, std::memory_order_relaxed);
  Trim();
}

void PrefixIndex::GiveUp(const Place& place) {
  Entries::node_type gone;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  if (EntryOf(place) != nullptr) gone = TakeLocked(place.key_);
}

PrefixIndex::Entries::node_type PrefixIndex::TakeLocked(const PrefixKey& key) {
  Entries::node_type node = entries_.extract(key);
  Entry& entry = node.mapped();
  used_bytes_ -= entry.charge.bytes();
  if (entry.image == nullptr) return node;
  const auto list = by_use_.find(entry.account.get());
  list->second.erase(entry.place);
  if (list->second.empty()) by_use_.erase(list);
  return node;
}

PrefixIndex::Entries::node_type PrefixIndex::TakeFirst(const ByteAccount* of) {
  absl::MutexLock lock(&mu_);
  const auto list = by_use_.find(of);
  return list == by_use_.end() ? Entries::node_type() : TakeLocked(list->second.front());
}

const ByteAccount* PrefixIndex::Heaviest() const {
  std::vector<ByteAccountPtr> accounts;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [account, keys] : by_use_) accounts.push_back(entries_.at(keys.front()).account);
  }
  const ByteAccount* heaviest = nullptr;
  double most = -1;
  for (const ByteAccountPtr& account : accounts) {
    const double shares = ledger_.SharesHeld(BytePool::kHost, *account);
    if (shares > most) heaviest = account.get(), most = shares;
  }
  return heaviest;
}

bool PrefixIndex::EvictOne(const ByteAccount* of) {
  const bool anybody = of == nullptr;
  while (true) {
    const ByteAccount* const account = anybody ? Heaviest() : of;
    if (account == nullptr) return false;
    const Entries::node_type gone = TakeFirst(account);
    if (!gone.empty()) {
      evictions_.fetch_add(1, std::memory_order_relaxed);
      return true;
    }
    if (!anybody) return false;  // otherwise another thread took the entry, and the search goes on
  }
}

bool PrefixIndex::DropOneOf(const ByteAccount& account) { return EvictOne(&account); }

void PrefixIndex::Trim() {
  const auto fits = [this] {
    const int64_t room = RoomBytes();
    absl::MutexLock lock(&mu_);
    return used_bytes_ <= room;
  };
  while (!fits() && EvictOne(nullptr)) {
  }
}

void PrefixIndex::DropExpired() {
  const SteadyTime unused_since = options_.clock.Now() - options_.ttl;
  expired_ += DropIf([&](const Entry& entry) { return entry.image != nullptr && entry.used < unused_since; });
}

int64_t PrefixIndex::Drop(const std::string& principal) {
  // Entries that are being copied too.
  const int64_t dropped = DropIf([&](const Entry& entry) { return entry.principal == principal; });
  dropped_ += dropped;
  return dropped;
}

int64_t PrefixIndex::DropIf(absl::FunctionRef<bool(const Entry&)> drops) {
  std::vector<Entries::node_type> gone;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto& [key, entry] = *it++;
    if (drops(entry)) gone.push_back(TakeLocked(key));
  }
  return static_cast<int64_t>(gone.size());
}

PrefixCounts PrefixIndex::counts() const {
  PrefixCounts counts{.limit_bytes = RoomBytes(),
                      .hits = hits_,
                      .misses = misses_,
                      .tokens_skipped = tokens_skipped_,
                      .kept = kept_,
                      .evictions = evictions_,
                      .expired = expired_,
                      .dropped = dropped_};
  absl::MutexLock lock(&mu_);
  counts.used_bytes = used_bytes_;
  for (const auto& [account, keys] : by_use_) counts.entries += static_cast<int64_t>(keys.size());
  return counts;
}

}  // namespace gdn
