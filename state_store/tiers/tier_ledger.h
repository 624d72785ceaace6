// The bookkeeping of a TierStack: where each state is and who is charged for it, the eviction order of each tier,
// pending erasures, back-off after failures, and the per-session locks (Owner).
//
// Keys without any copy are not recorded. The state to evict from a tier is the least recently used one of the holder
// that is furthest over its share (TierHolders).
// Thread safety: all methods are safe from any thread, and none calls a tier. Methods that change a key's copies or
// place may be called only while holding the session's Owner. Ownership: values.
//
//   TierLedger ledger({"host", "disk"}, /*durable_tiers=*/0b10, {});
//   TierLedger::Owner owner(ledger, key);  // waits for a move of the session to end
//   ledger.AddNewest(1, key, {.bytes = image->bytes()});
//   ledger.Park(1, key, image->bytes());
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/eviction_order.h"
#include "base/threads/steady_clock.h"
#include "state_store/tiers/state_tier.h"
#include "state_store/tiers/tier_holders.h"

namespace gdn {

struct TierLedgerOptions {
  // Time without Stores after a tier could not be reached, so that not every eviction waits for the tier.
  absl::Duration retry_after = absl::Seconds(1);
  // Most pending erasures to remember for a tier. The copy of a forgotten one may be found again when a server starts.
  size_t max_owed_erasures = 65536;
  const SteadyClock* clock = &SteadyClock::Real();
  TierHolders* holders = nullptr;  // nullptr: no accounting; all states count as one holder's
};

// Returns the name of the tier in a tier's error, for texts such as "the disk tier"; "lower" if the error has none.
std::string TierNameIn(const absl::Status& error);

// A tier's copy of a state.
struct TierCopy {
  int64_t bytes = 0;                                   // bytes that the key's holder is charged for
  std::optional<StateVersion> version = std::nullopt;  // nullopt: not known
};

class TierLedger {
 public:
  static constexpr size_t kNowhere = ~size_t{0};
  using TierSet = uint32_t;  // bit t: tier t

  // `tiers`: the names of the tiers, fastest first.
  TierLedger(std::vector<std::string> tiers, TierSet durable_tiers, const TierLedgerOptions& options)
      : names_(std::move(tiers)), durable_tiers_(durable_tiers), options_(options), levels_(names_.size()) {}
  TierLedger(const TierLedger&) = delete;
  TierLedger& operator=(const TierLedger&) = delete;

  // A lock on a session and its checkpoints, for a scope: its holder may move the session and call tiers for it. The
  // constructor waits while another thread has it. The key must outlive the Owner.
  class Owner {
   public:
    struct Acquired {};
    static constexpr Acquired kAcquired{};

    Owner(TierLedger& ledger, const StateKey& key) : ledger_(ledger), key_(key) { ledger_.Acquire(key_); }
    // Adopts the lock of a session that AcquireNext or AcquireOwing has returned.
    Owner(TierLedger& ledger, const StateKey& key, Acquired) : ledger_(ledger), key_(key) {}
    ~Owner() { ledger_.Relinquish(key_); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

   private:
    TierLedger& ledger_;
    const StateKey& key_;
  };

  // --- Places.
  // Records that the tier may have a state of the key: a Store's outcome is not known, or a copy of unknown age was
  // found. The key's newest copy stays the one recorded.
  void AddCopy(size_t tier, const StateKey& key, const TierCopy& copy);
  // Records that the tier has the key's newest state; in a durable tier, this is the key's checkpoint. `reserved`: the
  // result of TakeQuota, which is replaced by the copy's own charge.
  void AddNewest(size_t tier, const StateKey& key, const TierCopy& copy = {}, std::shared_ptr<void> reserved = nullptr);
  // The range of versions that the tier with the key's checkpoint can have, if that tier was not set back. VersionsOf:
  // nullopt if they are not known.
  struct Versions {
    StateVersion oldest, newest;
  };
  std::optional<Versions> VersionsOf(const StateKey& key) const;
  bool HasCopy(size_t tier, const StateKey& key) const;
  // Returns the session's named checkpoints, sorted by id, each with the tier of its newest copy, or of any if unknown.
  std::vector<std::pair<StateKey, size_t>> NamedCheckpoints(const StateKey& session) const;
  // Forgets the tier's copy of the key, with its charge, and records that the tier must still erase it (a debt).
  void DropCopy(size_t tier, const StateKey& key);
  // Records that the key is parked in the tier, as the most recently used one. Returns the other tiers whose copies the
  // caller must erase. If `tier` is not durable, these are not the durable ones, which stay as checkpoints.
  TierSet Park(size_t tier, const StateKey& key, int64_t bytes);
  // Call after AddNewest of a checkpoint in a durable tier. A key that was parked in another durable tier is now parked
  // in this one. Returns the other durable tiers with copies, for the caller to erase.
  TierSet MoveCheckpoint(size_t tier, const StateKey& key, int64_t bytes);
  // Records that the key is on the device again. Returns the tiers that are not durable and have copies, for the caller
  // to erase. If there are any, call Left(0, ..) after erasing them.
  TierSet Unpark(const StateKey& key);
  // Forgets the session, and records that every tier must still erase all its states. Then call Left once for each
  // tier, after trying the erasure, also if it failed or was put off. `noted`: tiers for which an erasure note is
  // stored, so their debts are never forgotten.
  void End(const StateKey& session, TierSet noted = 0);
  // Removes the session and its debts without any erasures, because another server has it now, with its copies in a
  // shared tier.
  void Forget(const StateKey& session);
  // Returns the tiers that may have a state or a checkpoint of the session, also those that still owe its erasure.
  TierSet TiersWith(const StateKey& session) const;
  // Returns the tier that the key is parked in, and marks the key as most recently used. If the key is not parked, or
  // `parked` is false, returns the durable tier with its checkpoint. kNowhere if there is none.
  size_t Find(const StateKey& key, bool parked);
  size_t PlaceOf(const StateKey& key) const;

  // --- Room.
  // Reserves the holder's quota for a new state of the key in the tier, less the bytes that the key already has there,
  // until the result is destroyed. RESOURCE_EXHAUSTED of TierHolders::TryCharge. Without holders, the result is empty.
  absl::StatusOr<std::shared_ptr<void>> TakeQuota(size_t tier, const StateKey& key, int64_t bytes);
  // Call after TakeQuota was refused: calls TierHolders::GiveWay for the key's holder, without holding the lock, and
  // returns its result.
  bool GiveWay(size_t tier, const StateKey& key);
  // Result of AcquireNext: the next state to evict from the tier, not in `tried` and without an Owner. Its session is
  // locked now: adopt the lock with an Owner, and call Moved at the end. `key` nullopt: there is none. If other
  // evictions run then, `may_wait` waits until a session's lock is released; `waited` is then true: call again.
  struct Next {
    std::optional<StateKey> key;
    int64_t bytes = 0;
    bool waited = false;
    const void* holder = nullptr;
  };
  // Limits the states that AcquireNext may return; by default all of the tier's.
  struct Whose {
    const StateKey* like;          // if set, only states of this key's holder
    std::set<const void*> except;  // no states of these holders
  };
  Next AcquireNext(size_t tier, const std::set<StateKey>& tried, bool may_wait, const Whose& whose = {});
  // Ends an eviction; call before its Owner is destroyed. If it was not `moved`, the state becomes most recently used.
  void Moved(size_t tier, const StateKey& key, bool moved);
  // Call once the copies are erased in the tier that Unpark or End began to free: CanFree and AcquireNext stop waiting
  // for it. `wake`: wakes waiting threads now, not only when the Owner is destroyed.
  void Left(size_t tier, bool wake);
  // True if the tier's parked states have at least `bytes` bytes together, or if running calls are freeing bytes there.
  bool CanFree(size_t tier, int64_t bytes) const;
  // Returns the size of the next state to evict from the tier; nullopt if no state is parked there.
  std::optional<int64_t> NextBytes(size_t tier);

  // --- Debts: pending erasures of a tier. true: of the session and all its checkpoints (the key then has no checkpoint
  // id); false: of the key only.
  using Debt = std::pair<StateKey, bool>;
  // Returns the debts of the session in the tier.
  std::vector<Debt> Owed(size_t tier, const StateKey& session) const;
  // True if there is a debt under exactly this key.
  bool Owes(size_t tier, const StateKey& key) const;
  // Adds a debt of the whole session. It has an erasure note, so it is never forgotten.
  void OweNoted(size_t tier, const StateKey& session);
  // Records that the tier has erased a debt's states. Ends a back-off that was for want of space.
  void Paid(size_t tier, const Debt& debt);
  // Returns at most `most` keys with debts in the tier whose sessions had no Owner, and locks these. Adopt each lock
  // with an Owner.
  std::vector<StateKey> AcquireOwing(size_t tier, size_t most);

  // --- Back-off.
  // OK, or the error of BackOff while the tier is in a back-off.
  absl::Status TakesStates(size_t tier) const;
  // Records the result of a call of the tier. Begins a back-off if two different sessions got UNAVAILABLE without a
  // success in between (one session's failure may not be the tier's). A success ends the back-off.
  void Note(size_t tier, const StateKey& session, const absl::Status& status);
  // Begins a back-off: for retry_after, TakesStates returns an error with the code and reason of `why`. The text of
  // `why` is not shown to other callers, because it may name a session.
  void BackOff(size_t tier, const absl::Status& why);
  // False for a while after a trim that moved nothing: `retry_after`, doubled with each further one, up to a minute.
  bool MayTrim() const;
  void NoteTrim(bool moved);

 private:
  struct Charged {
    std::shared_ptr<void> held;
    int64_t bytes = 0;
  };
  struct Entry {
    const StateKey* key = nullptr;      // in entries_
    TierHolders::Holder holder;         // holder that is charged; nullptr without holders
    size_t place = kNowhere;            // tier that the key is parked in
    size_t checkpoint = kNowhere;       // durable tier with the newest durable copy; may equal `place`
    TierSet copies = 0;                 // tiers that have a state of the key, of any age
    std::map<size_t, Charged> charges;  // charges for `copies`, by tier
    std::optional<Versions> versions;   // versions that the copy in `checkpoint` may have
    int64_t bytes = 0;                  // bytes included in levels_[place].bytes
    uint64_t used = 0;                  // time of the last use while it is parked, in numbers of uses
  };
  struct Level {
    EvictionOrder<Entry, &Entry::holder> parked;
    int64_t bytes = 0;    // total of the parked states
    int leaving = 0;      // running calls that free bytes in this tier
    SteadyTime retry_at;  // end of the back-off; until then Stores are refused with `error`
    absl::Status error;
    std::optional<StateKey> failed_for;  // first session for which the tier was unavailable since its last success
    std::map<StateKey, bool> owed;       // debts
    std::set<StateKey> noted;            // keys of `owed` that are in a note
  };

  void Acquire(const StateKey& key);
  bool TryAcquire(const StateKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Relinquish(const StateKey& key);
  Entry& EntryOf(const StateKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetCopy(size_t tier, const StateKey& key, Entry& entry, int64_t bytes, std::shared_ptr<void> reserved = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteUse(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the first entry in the tier's eviction order whose holder passes may_leave(holder) and whose key passes
  // take(key); nullptr if there is none. Keys are passed to `take` in that order until it returns true.
  const Entry* FirstToLeave(size_t tier, absl::FunctionRef<bool(const StateKey&)> take,
                            absl::FunctionRef<bool(const void*)> may_leave) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropEntries(const StateKey& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetPlace(Entry& entry, size_t place, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Owe(size_t tier, const StateKey& key, bool all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsDurable(size_t tier) const { return (durable_tiers_ >> tier & 1) != 0; }

  const std::vector<std::string> names_;
  const TierSet durable_tiers_;
  const TierLedgerOptions options_;

  mutable absl::Mutex mu_;
  absl::CondVar relinquished_;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  SteadyTime trim_again_ ABSL_GUARDED_BY(mu_);
  absl::Duration trim_pause_ ABSL_GUARDED_BY(mu_);  // pause after the last trim; zero if that moved a state
  std::map<StateKey, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::vector<Level> levels_ ABSL_GUARDED_BY(mu_);                            // by tier
  std::set<std::pair<std::string, std::string>> owned_ ABSL_GUARDED_BY(mu_);  // principal, id
};

}  // namespace gdn
