// What a TierStack knows of its tiers: which state is where and whose it is, what leaves a tier first, which erasures a
// tier still owes, when to try a broken one again; and who may move a session.
//
// A key without a copy anywhere is not in it. Where room is made in a tier, the holder that has most for its share of
// it gives first (TierHolders), of what it has parked there what was used longest ago.
// Thread safety: all methods from any thread, none blocks on a tier. What takes a key and changes its copies or its
// place is called by the session's Owner alone. Ownership: values.
//
//   TierLedger ledger({"host", "disk"}, /*durable_tiers=*/0b10, {});
//   TierLedger::Owner owner(ledger, key);  // waits for a move of the session to end
//   ledger.AddNewest(1, key, {.bytes = image->bytes()});
//   ledger.Park(1, key, image->bytes());
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "state_store/tiers/state_tier.h"
#include "state_store/tiers/tier_holders.h"

namespace gdn {

struct TierLedgerOptions {
  // A tier that could not be reached is given no states for so long, lest every eviction waits for it.
  absl::Duration retry_after = absl::Seconds(1);
  // Copies that an unreachable tier still has to erase are remembered up to so many; one that is forgotten may be found
  // again when a server starts.
  size_t max_owed_erasures = 65536;
  const SteadyClock* clock = &SteadyClock::Real();
  TierHolders* holders = nullptr;  // nullptr: all is one's, and nobody is charged
};

// A tier's copy of a state.
struct TierCopy {
  int64_t bytes = 0;                                   // that the key's holder is charged for
  std::optional<StateVersion> version = std::nullopt;  // nothing: what it is, is not known
};

class TierLedger {
 public:
  static constexpr size_t kNowhere = ~size_t{0};
  using TierSet = uint32_t;  // bit t: tier t

  // `tiers`: their names.
  TierLedger(std::vector<std::string> tiers, TierSet durable_tiers, const TierLedgerOptions& options)
      : names_(std::move(tiers)), durable_tiers_(durable_tiers), options_(options), levels_(names_.size()) {}
  TierLedger(const TierLedger&) = delete;
  TierLedger& operator=(const TierLedger&) = delete;

  // The right to move a session and to call tiers for it, for a scope.
  class Owner {
   public:
    struct Acquired {};
    static constexpr Acquired kAcquired{};

    Owner(TierLedger& ledger, const StateKey& key) : ledger_(ledger), key_(key) { ledger_.Acquire(key_); }
    // Of a session that AcquireNext or AcquireOwing has given.
    Owner(TierLedger& ledger, const StateKey& key, Acquired) : ledger_(ledger), key_(key) {}
    ~Owner() { ledger_.Relinquish(key_); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

   private:
    TierLedger& ledger_;
    const StateKey& key_;
  };

  // --- Places.
  // The tier may have this state of the key: whether a Store of it came to pass is not known.
  void AddCopy(size_t tier, const StateKey& key, const TierCopy& copy);
  // The tier has the key's newest state, which is its checkpoint where the tier is durable. `reserved`: what TakeQuota
  // gave for it, which the copy's own charge takes the place of.
  void AddNewest(size_t tier, const StateKey& key, const TierCopy& copy = {}, std::shared_ptr<void> reserved = nullptr);
  // Which states a durable tier that was told of by AddNewest can have of the key, if it has lost none.
  struct Versions {
    StateVersion oldest, newest;
  };
  std::optional<Versions> VersionsOf(const StateKey& key) const;
  bool HasCopy(size_t tier, const StateKey& key) const;
  // The session's named checkpoints, by id, each with a tier that has it, the one with the newest where that is known.
  std::vector<std::pair<StateKey, size_t>> NamedCheckpoints(const StateKey& session) const;
  // The tier's copy of the key is to go: it owes the erasure.
  void DropCopy(size_t tier, const StateKey& key);
  // The key is parked in a tier, as what was used last. Returns the tiers whose copies are of no use now: all others,
  // but durable ones stay until a newer copy is durable.
  TierSet Park(size_t tier, const StateKey& key, int64_t bytes);
  // The tier, a durable one, has a new checkpoint of the key, and is its place if that was a durable tier. Returns the
  // other durable tiers with copies.
  TierSet MoveCheckpoint(size_t tier, const StateKey& key, int64_t bytes);
  // The key is parked nowhere. Returns the tiers with copies that are not durable; where there are any, something is
  // leaving tier 0 until Left.
  TierSet Unpark(const StateKey& key);
  // Nothing of the session is anywhere: every tier owes its erasure, and something is leaving each until Left.
  // `noted`: the tiers whose debts a note has on record, so that they must not be forgotten.
  void End(const StateKey& session, TierSet noted = 0);
  // Nothing is to be known of the session any more: it is another server's, with its copies in a shared tier.
  void Forget(const StateKey& session);
  // The tiers that may have a state of the session, or of a checkpoint of it.
  TierSet TiersWith(const StateKey& session) const;
  // The tier that the key is parked in, which counts as a use of it; where it is parked nowhere, or `parked` is false,
  // the tier with its checkpoint.
  size_t Find(const StateKey& key, bool parked);
  size_t PlaceOf(const StateKey& key) const;

  // --- Room.
  // For a state of the key that is to be put into the tier, until the result dies: its holder may have what it is more
  // than what is there of the key. RESOURCE_EXHAUSTED of TierHolders::TryCharge.
  absl::StatusOr<std::shared_ptr<void>> TakeQuota(size_t tier, const StateKey& key, int64_t bytes);
  // After a refusal of it, without any lock: TierHolders::GiveWay for the key's holder.
  bool GiveWay(size_t tier, const StateKey& key);
  // What is to leave the tier first of what is parked there, was not `tried` and has no owner. It has one now, and is
  // leaving until Moved. Where there is none but something else is leaving, `may_wait` waits for a change.
  struct Next {
    std::optional<StateKey> key;
    int64_t bytes = 0;
    bool waited = false;
    const void* holder = nullptr;
  };
  struct Whose {
    const StateKey* like = nullptr;     // only of this key's holder
    std::set<const void*> except = {};  // of these holders none
  };
  Next AcquireNext(size_t tier, const std::set<StateKey>& tried, bool may_wait, const Whose& whose);
  Next AcquireNext(size_t tier, const std::set<StateKey>& tried, bool may_wait) {
    return AcquireNext(tier, tried, may_wait, Whose());
  }
  // Called before its Owner ends. `moved` false: it stays, and counts as used, so that it is not tried first again.
  void Moved(size_t tier, const StateKey& key, bool moved);
  // `wake`: at once those that wait for it, and not only when the Owner ends.
  void Left(size_t tier, bool wake);
  // Whether moves may make so many bytes free in the tier.
  bool CanFree(size_t tier, int64_t bytes) const;
  // Of what is to leave first; nullopt where nothing is parked.
  std::optional<int64_t> NextBytes(size_t tier) const;

  // --- Debts: erasures that a tier has still to make, by key: of it alone, or (true) of all of the session's, then
  // without a checkpoint id.
  using Debt = std::pair<StateKey, bool>;
  std::vector<Debt> Owed(size_t tier, const StateKey& session) const;
  // Of this key alone.
  bool Owes(size_t tier, const StateKey& key) const;
  // A debt of all of the session's, as a note has it.
  void OweNoted(size_t tier, const StateKey& session);
  void Paid(size_t tier, const Debt& debt);
  // At most so many keys with debts in the tier, whose sessions had no owner and have one now.
  std::vector<StateKey> AcquireOwing(size_t tier, size_t most);

  // --- Back-off.
  // OK, or why the tier takes no states now.
  absl::Status TakesStates(size_t tier) const;
  // What a call of the tier for a session came to. A tier that cannot be reached is left alone for a while, one that
  // can is not. One session's trouble, as with its folder, is not the tier's: two must fail with no success between.
  void Note(size_t tier, const StateKey& session, const absl::Status& status);
  // `why` is not shown to others, for it may name a session.
  void BackOff(size_t tier, const absl::Status& why);
  // False for `retry_after` after a trim that moved nothing, and twice as long after each further one, up to a minute.
  bool MayTrim() const;
  void NoteTrim(bool moved);

 private:
  struct Parked {
    StateKey key;
    uint64_t used = 0;  // counts uses: what was used longest ago has least
  };
  struct Charged {
    std::shared_ptr<void> held;
    int64_t bytes = 0;
  };
  struct Entry {
    TierHolders::Holder holder;         // whose it is; nullptr without holders
    size_t place = kNowhere;            // the tier it is parked in
    size_t checkpoint = kNowhere;       // the durable tier with its newest durable copy, `place` or not
    TierSet copies = 0;                 // the tiers that have a state of the key, of whatever age
    std::map<size_t, Charged> charges;  // of those copies, by tier
    std::optional<Versions> versions;   // of that copy
    int64_t bytes = 0;                  // what it counts for in levels_[place].bytes
    std::list<Parked>::iterator used;   // in its holder's list of levels_[place]
  };
  struct Level {
    std::map<const void*, std::list<Parked>> parked;  // here, by holder, least recently used first; no list is empty
    int64_t bytes = 0;                                // theirs
    int leaving = 0;                                  // calls under way that make room here
    SteadyTime retry_at;                              // until then it takes no states, for `error`
    absl::Status error;
    std::optional<StateKey> failed_for;  // the session that it could not be reached for, since it last was
    std::map<StateKey, bool> owed;
    std::set<StateKey> noted;  // those of `owed` that a note has on record
  };

  void Acquire(const StateKey& key);
  bool TryAcquire(const StateKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Relinquish(const StateKey& key);
  Entry& EntryOf(const StateKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetCopy(size_t tier, const StateKey& key, Entry& entry, int64_t bytes, std::shared_ptr<void> reserved = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteUse(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first to leave the tier of those that `take` takes and whose holder `may_leave`; nullptr.
  const StateKey* FirstToLeave(size_t tier, const std::function<bool(const StateKey&)>& take,
                               const std::function<bool(const void*)>& may_leave) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetPlace(const StateKey& key, Entry& entry, size_t place, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Owe(size_t tier, const StateKey& key, bool all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsDurable(size_t tier) const { return (durable_tiers_ >> tier & 1) != 0; }

  const std::vector<std::string> names_;
  const TierSet durable_tiers_;
  const TierLedgerOptions options_;

  mutable absl::Mutex mu_;
  absl::CondVar relinquished_;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  SteadyTime trim_again_ ABSL_GUARDED_BY(mu_);
  absl::Duration trim_pause_ ABSL_GUARDED_BY(mu_);  // after the last trim; zero: it moved something
  std::map<StateKey, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::vector<Level> levels_ ABSL_GUARDED_BY(mu_);                            // by tier
  std::set<std::pair<std::string, std::string>> owned_ ABSL_GUARDED_BY(mu_);  // principal, id
};

}  // namespace gdn
