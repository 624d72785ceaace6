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
  if (it != entries_.end() && it->second.image != nullptr) order_.Use(it->second, options_.clock.Now());
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
        if (it->second.image != nullptr) order_.Use(it->second, options_.clock.Now());
        return {.place = {}, .there = true};
      }
      if (charge.valid() && used_bytes_ + bytes <= RoomBytes()) {
        used_bytes_ += bytes;
        Entry& entry = entries_[key];
        entry.key = key;
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
    order_.Add(*entry);
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
  if (entry.image != nullptr) order_.Remove(entry);
  return node;
}

bool PrefixIndex::EvictOne(const ByteAccount* of) {
  Entries::node_type gone;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const Entry* const next = order_.First(
      [&](const Entry& any) {
        return of == nullptr || any.account.get() == of
                   ? std::optional(ledger_.SharesHeld(BytePool::kHost, *any.account))
                   : std::nullopt;
      },
      [](const Entry&) { return true; });
  if (next == nullptr) return false;
  gone = TakeLocked(next->key);
  evictions_.fetch_add(1, std::memory_order_relaxed);
  return true;
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
  counts.entries = std::ranges::count_if(entries_, [](const auto& entry) { return entry.second.image != nullptr; });
  return counts;
}

}  // namespace gdn
