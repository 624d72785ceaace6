// The snapshots of a server in the order of their eviction, and the snapshots that were lost.
//
// The next one to be evicted is the least recently used of the account that is furthest over its share of the pool
// kSnapshots. Accounts within their share count as equal. A new snapshot of an account that would then be over its
// share evicts none of an account within its own (base/eviction_order.h).
// The losses of a principal are numbered by its *mark*, which starts at random and rises by one with each loss. So a
// client that compares marks notices a loss, and also a restart, after which the mark starts anew.
// Thread safety: safe from any thread. Ownership: sessions are not kept alive; the ledger must outlive it.
//
//   book.Add(snapshot);
//   const std::shared_ptr<Session> victim = book.TakeFirst(*account, bytes);
//   ... end it ...; book.NoteLost(victim->principal(), key, SnapshotLoss::Cause::kEvicted);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/eviction_order.h"
#include "base/threads/steady_clock.h"
#include "server/admission/byte_ledger.h"

namespace gdn {

class Session;

// A principal's mark (0: none) as its sessions read it, without a mutex. Only the book writes it.
using SnapshotMarkPtr = std::shared_ptr<const std::atomic<int64_t>>;

struct SnapshotLoss {
  enum class Cause : uint8_t { kEvicted, kDamaged };

  std::string key;  // without kSnapshotMark
  Cause cause = Cause::kEvicted;
  absl::Time when;   // only shown to users
  int64_t mark = 0;  // the principal's mark since this loss
};

class SnapshotBook {
 public:
  static constexpr size_t kMostLosses = 1024;       // remembered of one principal
  static constexpr size_t kMostPrincipals = 4096;   // remembered without a snapshot
  static constexpr size_t kMostAllLosses = 65'536;  // remembered of all principals together

  explicit SnapshotBook(ByteLedger& ledger, const SteadyClock& clock = SteadyClock::Real())
      : ledger_(ledger), clock_(clock) {}
  SnapshotBook(const SnapshotBook&) = delete;
  SnapshotBook& operator=(const SnapshotBook&) = delete;

  // Adds a snapshot that others can find. Remove: it has ended or has left; does nothing for unknown ones.
  void Add(const std::shared_ptr<Session>& snapshot);
  void Remove(const Session& snapshot);

  // Takes the next snapshot that is to be evicted, so that `bytes` more fit for the account `wanted_by`. Others do not
  // get it meanwhile. nullptr: there is none now. The caller then ends it, or calls PutBack.
  std::shared_ptr<Session> TakeFirst(const ByteAccount& wanted_by, int64_t bytes);
  // Puts back a snapshot that could not be ended. It is not taken again for a second.
  void PutBack(const Session& snapshot);
  // True while snapshots are taken, so that waiting may help.
  bool evicting() const { return taken_.load(std::memory_order_relaxed) > 0; }

  void NoteLost(const std::string& principal, std::string_view key, SnapshotLoss::Cause cause);
  // The principal's mark; 0 if it has no snapshot here and none was lost.
  int64_t MarkOf(std::string_view principal) const;
  // The same, for readers that keep it. It follows the principal's mark while the book lives.
  SnapshotMarkPtr WatchMark(const std::string& principal);
  struct Losses {
    std::vector<SnapshotLoss> losses;  // oldest first
    bool incomplete = false;           // there may be others
    int64_t mark = 0;
  };
  // The losses after the one with the mark `after`; 0: all. `incomplete` if they are not remembered any more, or if
  // this book did not give out `after`.
  Losses LossesAfter(std::string_view principal, int64_t after) const;
  // The cause of the newest loss of this key, if it is remembered.
  std::optional<SnapshotLoss::Cause> CauseOf(std::string_view principal, std::string_view key) const;

  int64_t size() const;
  int64_t evicted() const { return evicted_.load(std::memory_order_relaxed); }
  int64_t damaged() const { return damaged_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::weak_ptr<Session> snapshot;
    ByteAccountPtr account;
    std::string principal;
    SteadyTime used;  // its last use, as known here
    bool taken = false;
    SteadyTime stuck_until = SteadyTime::InfinitePast();

    SteadyTime LastUsed() const;
  };
  struct Record {
    int64_t base = 0;  // the mark before the first loss
    int64_t lost = 0;  // number of losses
    int64_t snapshots = 0;
    uint64_t touched = 0;             // order of the last change
    std::deque<SnapshotLoss> losses;  // the newest ones, oldest first
  };
  static constexpr size_t kFewMarks = 64;  // entries of marks_ that are not worth a search
  using Entries = std::unordered_map<const Session*, Entry>;

  using Marks = std::map<std::string, std::weak_ptr<std::atomic<int64_t>>, std::less<>>;

  int64_t MarkLocked(std::string_view principal) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Shows the principal's mark to those who watch it. Call after each change.
  void ShowMark(std::string_view principal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Record& RecordOf(const std::string& principal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TrimLosses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ByteLedger& ledger_;
  const SteadyClock& clock_;
  std::atomic<int64_t> taken_{0}, evicted_{0}, damaged_{0};
  mutable absl::Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);
  EvictionOrder<Entry, &Entry::account> order_ ABSL_GUARDED_BY(mu_);  // of those that are not taken
  std::map<std::string, Record, std::less<>> records_ ABSL_GUARDED_BY(mu_);
  // By principal; null if nobody watches it any more. Such entries go when there are `marks_kept_` entries.
  Marks marks_ ABSL_GUARDED_BY(mu_);
  size_t marks_kept_ ABSL_GUARDED_BY(mu_) = kFewMarks;
  size_t all_losses_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
