// Kept prefixes of prompts: states at segments' ends, in host memory, for sessions that begin there.
//
// It is a radix tree of segments that is kept by its paths: an entry's key is the hash of the whole way to it
// (prefix_key.h). So the longest known prefix of a prompt is found by one look-up a segment, from the last to the
// first, and an entry needs no other to be found: what is between two of them may go.
// Entries are charged to their account where they lie (BytePool::kHost). They have at most `limit_bytes`, and of a host
// tier's memory only what its sessions leave; sessions go before them there, and where a quota is in the way. Of the
// account that holds most for its share of host memory the entry that was not used for longest goes first.
// Thread safety: safe from any thread; no ledger is called with the lock held, so its callbacks may come back here.
// Ownership: shares images, which stay as they are: a session that begins with one needs the entry no more. The ledger
// and what the options call must outlive it.
//
//   PrefixStart start = index.Find(keys);              // start.image: nullptr where none is known
//   auto place = index.Begin(keys.back(), principal, account, bytes);
//   if (place.begun()) place.Keep(tokens, image);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "server/admission/byte_ledger.h"
#include "server/session/prefix_key.h"
#include "state_store/session_image.h"

namespace gdn {

struct PrefixIndexOptions {
  int64_t limit_bytes = 0;                        // 0: nothing is kept
  absl::Duration ttl = absl::InfiniteDuration();  // entries that were not used for so long go
  std::function<int64_t()> left_bytes = nullptr;  // that sessions leave of the memory; nullptr: it has its own
  const SteadyClock& clock = SteadyClock::Real();
};

// Where a session may begin.
struct PrefixStart {
  PrefixKey key = {};
  int64_t tokens = 0;
  SessionImagePtr image;  // without replies; nullptr: nowhere
};

struct PrefixCounts {
  int64_t limit_bytes = 0;  // now
  int64_t used_bytes = 0;   // with what is being copied
  int64_t entries = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t tokens_skipped = 0;
  int64_t kept = 0;
  int64_t evictions = 0;
  int64_t expired = 0;
  int64_t dropped = 0;  // by their callers
};

class PrefixIndex {
 public:
  PrefixIndex(ByteLedger& ledger, PrefixIndexOptions options) : ledger_(ledger), options_(std::move(options)) {}
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  bool on() const { return options_.limit_bytes > 0; }

  // The longest known of a prompt's prefixes. It counts as no use.
  PrefixStart Find(const std::vector<PrefixKey>& keys) const;
  // A session has been made that asked for a prefix, and begins there.
  void NoteStart(const PrefixStart& start);

  // Room for one entry, until it is kept or this dies.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept
        : index_(std::exchange(other.index_, nullptr)), key_(other.key_), serial_(other.serial_) {}
    Place& operator=(Place&&) = delete;
    ~Place() { GiveUp(); }
    void GiveUp();
    bool begun() const { return index_ != nullptr; }
    // `image` has `tokens` in all layers, and no replies. Nothing is kept where it has been dropped meanwhile.
    void Keep(int64_t tokens, SessionImagePtr image);

   private:
    friend class PrefixIndex;
    Place(PrefixIndex* index, const PrefixKey& key, uint64_t serial) : index_(index), key_(key), serial_(serial) {}
    PrefixIndex* index_ = nullptr;
    PrefixKey key_ = {};
    uint64_t serial_ = 0;
  };
  struct Beginning {
    Place place;         // begun only where it is to be kept now
    bool there = false;  // it is kept, or another call is at it
  };
  // Makes room for an entry of so many bytes. Neither begun nor there: there is none.
  Beginning Begin(const PrefixKey& key, const std::string& principal, const ByteAccountPtr& account, int64_t bytes);

  // All of the principal; how many.
  int64_t Drop(const std::string& principal);
  // One of the account's, for its quota. False where it has none.
  bool DropOneOf(const ByteAccount& account);
  // What is more than there is room for, now that sessions have taken some.
  void Trim();
  void DropExpired();

  PrefixCounts counts() const;

 private:
  struct Entry {
    std::string principal;
    ByteAccountPtr account;
    ByteCharge charge;
    int64_t tokens = 0;
    SessionImagePtr image;  // nullptr: it is being copied
    SteadyTime used;
    std::list<PrefixKey>::iterator place;  // in the account's list, where it has an image
    uint64_t serial = 0;                   // another one of the same key has another
  };
  using Entries = std::map<PrefixKey, Entry>;

  int64_t RoomBytes() const;
  void Keep(const Place& place, int64_t tokens, SessionImagePtr image);
  void GiveUp(const Place& place);
  // The entry that the place was given for; nullptr where it has been dropped.
  Entry* EntryOf(const Place& place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UseLocked(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Out of all that is kept; the node is to die without the lock.
  Entries::node_type TakeLocked(const PrefixKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the one that is to go first out: of this account, or where it is nullptr of that which holds most.
  Entries::node_type TakeFirst(const ByteAccount* of);
  bool EvictOne(const ByteAccount* of);
  // The account with entries that holds most for its share of host memory; nullptr.
  const ByteAccount* Heaviest() const;

  ByteLedger& ledger_;
  const PrefixIndexOptions options_;
  std::atomic<int64_t> hits_{0}, misses_{0}, tokens_skipped_{0}, kept_{0}, evictions_{0}, expired_{0}, dropped_{0};
  mutable absl::Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  std::map<const ByteAccount*, std::list<PrefixKey>> by_use_ ABSL_GUARDED_BY(mu_);  // least recently used first
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t begun_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
