// The tiers below the device as one place: a session's state is put into the fastest that has room, and what was not used
// for longest moves down.
//
// Which tier holds a state is the stack's own business; losing none is its promise: a state leaves a tier only once the
// next one has it.
// Thread safety: all methods from any thread; calls of one key are made one at a time by the caller, the stack's own moves
// wait for them and they for those. No lock is held while a tier reads or writes. Ownership: the tiers must outlive it.
//
//   TierStack stack({&host, &disk, &redis});
//   GDN_RETURN_IF_ERROR(stack.Park(key, image));        // the session leaves the device
//   GDN_ASSIGN_OR_RETURN(SessionImagePtr image, stack.Fetch(key));
//   stack.Release(key);                                 // it is on the device again
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

struct TierStackOptions {
  // A tier that could not be reached is given no states for so long, lest every eviction waits for it.
  absl::Duration retry_after = absl::Seconds(1);
  // Copies that an unreachable tier still has to erase are remembered up to so many; one that is forgotten may be found
  // again when a server starts.
  size_t max_owed_erasures = 65536;
};

class TierStack {
 public:
  // Fastest first; at most one of them is not durable, and it is the first.
  explicit TierStack(std::vector<StateTier*> tiers, TierStackOptions options = {});
  TierStack(const TierStack&) = delete;
  TierStack& operator=(const TierStack&) = delete;

  bool empty() const { return tiers_.empty(); }
  // The fastest durable tier, which takes checkpoints; nullptr where there is none.
  StateTier* durable() const { return durable_ < tiers_.size() ? tiers_[durable_] : nullptr; }

  // Takes the state in, moving others down where that makes room. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where no
  // tier has room, UNAVAILABLE (TIER_UNAVAILABLE) where one that might have cannot be written, naming it: the caller still
  // has the state then, and what was parked is parked. An image without its bases (LayerImage::has_base) goes to
  // durable(), whose KnownBases() it was made for, or nowhere.
  absl::Status Park(const StateKey& key, const SessionImagePtr& image);
  // Says that a parked state, or a named checkpoint, is in a durable tier, as found by its List. Where two tiers have a
  // key, adopt the newer one last: the other goes once the state is stored again.
  void Adopt(const StateKey& key, const StateTier& tier, int64_t bytes);
  // The state, from wherever it is; it stays there. Of a session on the device, and of a named checkpoint: its copy in a
  // durable tier. Errors of StateTier::Load.
  absl::StatusOr<SessionImagePtr> Fetch(const StateKey& key);
  // The newest copy in a durable tier, though a newer state may rest in host memory. Errors as of Fetch.
  absl::StatusOr<SessionImagePtr> FetchCheckpoint(const StateKey& key);
  // The session is on the device again. Its copy in a tier that is not durable goes; a durable one stays as its newest
  // checkpoint.
  void Release(const StateKey& key);
  // Makes a checkpoint in the durable tier, moving parked states down where it is full: StateTier::Store there; copies in
  // other durable tiers are then erased. FAILED_PRECONDITION (NO_DURABLE_TIER).
  absl::StatusOr<StoreResult> Checkpoint(const StateKey& key, const SessionImagePtr& image);
  // The session has ended: all of its states and checkpoints go, from every tier. A tier's error: that tier still has to
  // erase them, which later calls see to, and nothing of the session is found in it until then.
  absl::Status Erase(const StateKey& key);

  // Moves what was not used for longest out of host memory until that is filled to 80%, so that the next Park finds room;
  // for a background thread, which runs it when WantsTrim(): filled above 90%, and a tier below that takes states.
  void Trim();
  bool WantsTrim() const;

  // "host", "disk", "redis"; "" where the state is not parked.
  std::string PlaceOf(const StateKey& key) const;
  std::vector<TierUsage> usage() const;

 private:
  static constexpr size_t kNowhere = ~size_t{0};

  // What the stack knows of a key. One without a copy anywhere has no entry.
  struct Entry {
    size_t place = kNowhere;             // the tier it is parked in
    size_t checkpoint = kNowhere;        // the durable tier with its newest durable copy, `place` or not
    uint32_t copies = 0;                 // bit t: tier t has a state of the key, of whatever age
    int64_t bytes = 0;                   // what it counts for in levels_[place].bytes
    std::list<StateKey>::iterator used;  // in levels_[place].used
  };
  struct Level {
    std::list<StateKey> used;                    // the keys parked here, least recently used first
    int64_t bytes = 0;                           // theirs
    int leaving = 0;                             // calls under way that make room here
    absl::Time retry_at = absl::InfinitePast();  // until then it takes no states, for `error`
    absl::Status error;
    // Erasures that failed, by key: of it alone, or (true) of all of the session's, then without a checkpoint id.
    std::map<StateKey, bool> owed;
  };

  // A session's owner is the only one to call tiers for it and to change its entries.
  class Owner;
  void Acquire(const StateKey& key);
  bool TryAcquire(const StateKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Relinquish(const StateKey& key);

  // Those that take a key and an image are called by the session's owner; the others by any thread.
  absl::StatusOr<StoreResult> StoreAt(size_t tier, const StateKey& key, const SessionImagePtr& image);
  absl::Status StoreFrom(size_t first, const StateKey& key, const SessionImagePtr& image);
  // `parked`: from where it rests, if it does; else its checkpoint.
  absl::StatusOr<SessionImagePtr> FetchFrom(const StateKey& key, bool parked);
  absl::StatusOr<SessionImagePtr> LoadFrom(size_t tier, const StateKey& key);
  void EraseCopies(const StateKey& key, uint32_t tiers);
  absl::Status EraseOwed(size_t tier, const StateKey& key);
  void EraseSomeOwed();
  absl::Status MakeRoom(size_t tier, int64_t bytes);
  absl::Status MoveOut(size_t tier, int64_t bytes);

  absl::Status TakesStates(size_t tier) const;
  void Note(size_t tier, const absl::Status& status);
  void BackOff(size_t tier, const absl::Status& status);
  bool HasRoomFrom(size_t first, int64_t bytes) const;
  size_t IndexOf(const StateTier& tier) const;
  uint32_t DurableTiers() const;
  void SetPlace(const StateKey& key, Entry& entry, size_t place, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Owe(size_t tier, const StateKey& key, bool all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<StateTier*> tiers_;
  const TierStackOptions options_;
  size_t durable_ = kNowhere;

  mutable absl::Mutex mu_;
  absl::CondVar relinquished_;
  std::map<StateKey, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::vector<Level> levels_ ABSL_GUARDED_BY(mu_);                            // parallel to tiers_
  std::set<std::pair<std::string, std::string>> owned_ ABSL_GUARDED_BY(mu_);  // principal, id
};

}  // namespace gdn
