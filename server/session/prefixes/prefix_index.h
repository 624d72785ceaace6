// Stored prefixes of prompts: states at the ends of segments, in host memory, for sessions that start there.
//
// The index is a radix tree of segments, stored by its paths. The key of an entry is the hash of the whole path to it
// (prefix_key.h). So one look-up for each segment, from the last to the first, finds the longest stored prefix of a
// prompt. An entry is found without any other entry, so those between two entries may be evicted. Entries are charged
// to their account where they are (BytePool::kHost). Their total is at most `limit_bytes`, and in the host tier's
// memory at most what sessions leave. If sessions need that memory or an account reaches its quota, entries are evicted
// before sessions. The victim is the least recently used entry of the account that is furthest over its share of host
// memory.
// Thread safety: safe from any thread; nothing is charged or released with the lock held.
// Ownership: shares images, which never change: a session that started with an image does not need the entry any more.
// The ledger and what the options call must outlive it.
//
//   PrefixStart start = index.Find(keys);              // start.image: nullptr if none is stored
//   auto place = index.Begin(keys.back(), principal, account, bytes);
//   if (place.begun()) place.Keep(tokens, image);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/eviction_order.h"
#include "base/threads/steady_clock.h"
#include "server/admission/byte_ledger.h"
#include "server/session/prefixes/prefix_key.h"
#include "state_store/session_image.h"

namespace gdn {

struct PrefixIndexOptions {
  int64_t limit_bytes = 0;                        // 0: nothing is stored
  absl::Duration ttl = absl::InfiniteDuration();  // entries are dropped if they were not used for so long
  // Returns the host memory that sessions leave free. nullptr: prefixes have memory of their own.
  std::function<int64_t()> left_bytes = nullptr;
  const SteadyClock& clock = SteadyClock::Real();
};

// The state at which a session may start.
struct PrefixStart {
  PrefixKey key = {};
  int64_t tokens = 0;
  SessionImagePtr image;  // without replies; nullptr: no prefix is stored
};

struct PrefixCounts {
  int64_t limit_bytes = 0;  // at the moment
  int64_t used_bytes = 0;   // including entries that are being copied
  int64_t entries = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t tokens_skipped = 0;
  int64_t kept = 0;
  int64_t evictions = 0;
  int64_t expired = 0;
  int64_t dropped = 0;  // by DropPrefixes
};

class PrefixIndex {
 public:
  PrefixIndex(ByteLedger& ledger, PrefixIndexOptions options) : ledger_(ledger), options_(std::move(options)) {}
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  bool on() const { return options_.limit_bytes > 0; }

  // Returns the longest stored prefix of a prompt, by the keys of its segments' ends. This does not count as a use.
  PrefixStart Find(const std::vector<PrefixKey>& keys) const;
  // Counts a session that was made with a prompt's prefix and begins at `start`. This counts as a use of the entry.
  void NoteStart(const PrefixStart& start);

  // Memory reserved for one entry, until Keep is called or this object is destroyed.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept
        : index_(std::exchange(other.index_, nullptr)), key_(other.key_), serial_(other.serial_) {}
    Place& operator=(Place&&) = delete;
    ~Place() { GiveUp(); }
    void GiveUp();
    bool begun() const { return index_ != nullptr; }
    // Stores the entry. `image` must have `tokens` tokens in all layers, and no replies. Does nothing if the entry has
    // been dropped meanwhile.
    void Keep(int64_t tokens, SessionImagePtr image);

   private:
    friend class PrefixIndex;
    Place(PrefixIndex* index, const PrefixKey& key, uint64_t serial) : index_(index), key_(key), serial_(serial) {}
    PrefixIndex* index_ = nullptr;
    PrefixKey key_ = {};
    uint64_t serial_ = 0;
  };
  struct Beginning {
    Place place;         // begun only if the caller should store the entry now
    bool there = false;  // the entry is stored, or another call is storing it
  };
  // Reserves memory for an entry of `bytes` bytes. If the result is neither begun nor there, there is no memory.
  Beginning Begin(const PrefixKey& key, const std::string& principal, const ByteAccountPtr& account, int64_t bytes);

  // Drops all entries of the principal. Returns their number.
  int64_t Drop(const std::string& principal);
  // Evicts one entry of the account, for its quota. Returns false if it has none.
  bool DropOneOf(const ByteAccount& account);
  // Evicts entries until they fit into the memory that sessions leave them.
  void Trim();
  void DropExpired();

  PrefixCounts counts() const;

 private:
  struct Entry {
    PrefixKey key = {};
    std::string principal;
    ByteAccountPtr account;
    ByteCharge charge;
    int64_t tokens = 0;
    SessionImagePtr image;  // nullptr: the entry is being copied
    SteadyTime used;
    uint64_t serial = 0;  // differs from that of an earlier entry with this key
  };
  using Entries = std::map<PrefixKey, Entry>;

  int64_t RoomBytes() const;
  // Drops the entries for which `drops` returns true. Returns their number.
  int64_t DropIf(absl::FunctionRef<bool(const Entry&)> drops);
  void Keep(const Place& place, int64_t tokens, SessionImagePtr image);
  void GiveUp(const Place& place);
  // Returns the entry that the place was reserved for; nullptr if it has been dropped.
  Entry* EntryOf(const Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes and returns the entry, which must be there. The caller destroys the result after it has released the lock.
  Entries::node_type TakeLocked(const PrefixKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Evicts the next entry, or the next one of this account. Returns false if there is none.
  bool EvictOne(const ByteAccount* of);

  ByteLedger& ledger_;
  const PrefixIndexOptions options_;
  std::atomic<int64_t> hits_{0}, misses_{0}, tokens_skipped_{0}, kept_{0}, evictions_{0}, expired_{0}, dropped_{0};
  mutable absl::Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  EvictionOrder<Entry, &Entry::account> order_ ABSL_GUARDED_BY(mu_);  // of entries with an image
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t begun_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
