// The tiers below the device, as one place. A session's state is stored in the fastest tier that has room. A full tier
// moves states down: the least recently used ones of the holder that is furthest over its share (TierHolders).
//
// The stack loses no state: a state is removed from a tier only after the next tier has it.
// Thread safety: all methods are safe from any thread. The caller must make calls for one key one at a time; the
// stack's own moves lock the session. No mutex is held while a tier reads or writes. Ownership: the tiers must outlive
// it.
//
//   TierStack stack({&host, &disk, &redis});
//   GDN_RETURN_IF_ERROR(stack.Park(key, image));        // the session leaves the device
//   GDN_ASSIGN_OR_RETURN(SessionImagePtr image, stack.Fetch(key));
//   stack.Release(key);                                 // it is on the device again
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "state_store/tiers/disk/clean_marker.h"
#include "state_store/tiers/state_tier.h"
#include "state_store/tiers/tier_ledger.h"

namespace gdn {

// Most named checkpoints that a session may have, not counting its newest one, which has no name.
inline constexpr size_t kMostNamedCheckpoints = 64;

// The durable tiers in which TierStack::Checkpoint tries to store a checkpoint.
struct CheckpointPlaces {
  const StateTier* first = nullptr;  // first tier to ask, for which the holder is already charged; nullptr: durable()
  bool within_quota = true;          // whether the holder's quota limits the tiers after `first`
};

class TierStack {
 public:
  // `tiers`: fastest first. At most one may be not durable, and that must be the first.
  explicit TierStack(std::vector<StateTier*> tiers, const TierLedgerOptions& options = {});
  TierStack(const TierStack&) = delete;
  TierStack& operator=(const TierStack&) = delete;

  bool empty() const { return tiers_.empty(); }
  // Returns the fastest durable tier, which is the first to be asked to take a checkpoint; nullptr if there is none.
  StateTier* durable() const { return durable_ < tiers_.size() ? tiers_[durable_] : nullptr; }
  // Returns all durable tiers, fastest first.
  std::vector<StateTier*> DurableTiers() const;

  // Stores the state of a session that leaves the device, moving other states down to make room. RESOURCE_EXHAUSTED
  // (STATE_BUDGET_EXHAUSTED) if no tier has room, (QUOTA_EXCEEDED) if the holder's quota has none. UNAVAILABLE
  // (TIER_UNAVAILABLE: tier) if a tier that might have room cannot be written. FAILED_PRECONDITION (STATES_TAKEN_OVER)
  // if the only tier left is another server's now. After an error the caller still has the state, and parked states
  // stay parked. An image without its bases (LayerImage::has_base) can be stored only in durable(), for whose
  // KnownBases() it was made. Uses only the tier `fastest` (a result of NumberFrom) and slower ones.
  absl::Status Park(const StateKey& key, const SessionImagePtr& image, size_t fastest = 0);
  // Moves a parked state down to the tier `fastest` (a result of NumberFrom) or a slower one. OK, with nothing done, if
  // it is in such a tier already or is not parked. Errors of Fetch and Park; the state then stays in its tier.
  absl::Status Lower(size_t fastest, const StateKey& key);
  // Returns the index of the tier with this name ("host", "disk", "redis"), or of the next slower one if there is no
  // such tier; nullopt if all tiers are faster.
  std::optional<size_t> NumberFrom(std::string_view name) const;
  // OK if some tier accepts states now. Else the reason, which names no session: all are in a back-off or hang, or
  // there is no tier (RESOURCE_EXHAUSTED).
  absl::Status TakesStates() const { return TakesStatesFrom(0); }
  // Records a parked state, or a named checkpoint, that a durable tier's List has found. If two tiers have the key,
  // adopt the newer copy last; the other copy is erased when the state is stored again.
  void Adopt(const StateKey& key, const StateTier& tier, int64_t bytes,
             std::optional<StateVersion> version = std::nullopt);
  // Records a copy in a durable tier besides the adopted one. It is never used, and is erased with the key, or when the
  // key is stored again.
  void AddOtherCopy(const StateKey& key, const StateTier& tier, int64_t bytes);
  // Returns the state, which stays in its tier. For a session that is not parked, and for a named checkpoint, returns
  // the copy in a durable tier. Errors of StateTier::Load. DATA_LOSS (STATE_ROLLED_BACK) if a durable tier has an older
  // state than before, or none. FAILED_PRECONDITION (STATES_TAKEN_OVER) if another server has written a later one.
  absl::StatusOr<SessionImagePtr> Fetch(const StateKey& key) { return FetchFrom(key, /*parked=*/true); }
  // OK unless the tier that the state rests in hangs. Then UNAVAILABLE (TIER_UNAVAILABLE: tier), because Fetch is
  // refused until the tier answers.
  absl::Status CanFetch(const StateKey& key) const;
  // True if the state rests in memory, so that Fetch waits for no disk and no network.
  bool RestsInMemory(const StateKey& key) const;
  // Returns the newest copy in a durable tier, even if host memory has a newer state. Does not check the copy's age, so
  // the session must continue from it under a new epoch. Errors of StateTier::Load.
  absl::StatusOr<SessionImagePtr> FetchCheckpoint(const StateKey& key) { return FetchFrom(key, /*parked=*/false); }
  // Records that the session is on the device again. Erases its copy in a tier that is not durable; a durable copy
  // stays as its newest checkpoint.
  void Release(const StateKey& key);
  // Makes a checkpoint in the fastest durable tier that accepts it, moving parked states down if a tier is full. Then
  // erases the copies in other durable tiers. An image without its bases can be stored only in durable(). If no tier
  // accepts it, returns the error of a tier that cannot be reached, else of the first tier: errors of StateTier::Store,
  // RESOURCE_EXHAUSTED (QUOTA_EXCEEDED). FAILED_PRECONDITION (NO_DURABLE_TIER).
  absl::StatusOr<StoreResult> Checkpoint(const StateKey& key, const SessionImagePtr& image,
                                         const CheckpointPlaces& places = {});
  // Returns the bases that the image of a checkpoint in durable() may leave out now.
  BaseVersions KnownBases(const StateKey& key) const;
  // Records that the session, whose state is only its newest checkpoint of `bytes` bytes now, is parked in that
  // checkpoint's tier. Stores nothing. Does nothing if there is no checkpoint.
  void RestAtCheckpoint(const StateKey& key, int64_t bytes);
  // Returns the tier and version of the key's newest durable copy; nullopt if there is none, or if its version is not
  // known exactly.
  std::optional<CleanMarker::Copy> NewestCopy(const StateKey& key);
  // Lists the named checkpoints of a session, sorted by id. For a damaged one, only the key is set. Errors of
  // StateTier::Describe, except NOT_FOUND and DATA_LOSS.
  absl::StatusOr<std::vector<StoredSession>> ListCheckpoints(const StateKey& session);
  // RESOURCE_EXHAUSTED (TOO_MANY_CHECKPOINTS) if the session has kMostNamedCheckpoints others besides `key`.
  absl::Status CheckNamedCheckpoints(const StateKey& key) const;
  // Erases a named checkpoint in every tier. NOT_FOUND (CHECKPOINT_NOT_FOUND), errors of StateTier::Erase. After an
  // error of a tier, the checkpoint is not listed any more, and later calls erase it in that tier.
  absl::Status EraseCheckpoint(const StateKey& key);
  // Erases all states and checkpoints of a session in every tier. If a durable tier with copies cannot be reached, a
  // durable note is stored, and later calls, or a later server, erase the copies; nobody finds them until then.
  // UNAVAILABLE (TIER_UNAVAILABLE: tier) if no tier accepts the note: the session has not ended. With `even_unnoted`,
  // the session ends even then, and a server that starts before the copies are erased may find them.
  absl::Status Erase(const StateKey& key, bool even_unnoted = false);
  // Drops the session, because another server has it now. Only copies in tiers that are not durable are erased.
  void Forget(const StateKey& session);
  // Loads the erasure notes of earlier servers. Call once, before List of any tier. Errors of StateTier::ErasureNotes.
  absl::Status LoadErasureNotes();
  // Sets whether the tier has not been listed yet. Erase then assumes that it may have copies of any session.
  void SetUnlisted(const StateTier& tier, bool unlisted);

  // HandleDamage and its results. Call it after a durable tier has found its copy of the key damaged. It calls
  // `set_aside` with the session locked, which must remove that copy, or return false if the copy was replaced
  // meanwhile. Then it stores another copy in its place, if there is one.
  enum class DamageOutcome {
    kGone,        // nothing was done: the damaged copy was replaced or erased, or the tier hangs
    kCopyUsed,    // the damaged copy was replaced, or another durable tier's copy is the newest now
    kNotDurable,  // the session's checkpoint is lost, but the session is on the device or parked elsewhere
    kLost,        // the damaged copy was the only one: calls that need it get the tier's DATA_LOSS
  };
  DamageOutcome HandleDamage(const StateTier& tier, const StateKey& key, absl::FunctionRef<bool()> set_aside);

  // Evicts states from host memory until at most 80% of its limit is used, so that the next Park finds room. A
  // background thread calls Trim when WantsTrim() is true: more than 90% is used, and a lower tier accepts states.
  // After a Trim that moved nothing, WantsTrim() is false for a while (TierLedger::MayTrim).
  void Trim();
  bool WantsTrim();

  // True if the tier still has to erase states of the session: copies that List finds there must not be used.
  bool IsErased(const StateTier& tier, const StateKey& key) const;
  // True if the tier has a state of the key, of any age.
  bool HasCopy(const StateTier& tier, const StateKey& key) const;
  bool HasDurableCopy(const StateKey& key) const;
  // Returns the name of the tier that the key is parked in ("host", "disk", "redis"); "" if it is not parked.
  std::string PlaceOf(const StateKey& key) const;
  std::vector<TierUsage> usage() const;

 private:
  static constexpr size_t kNowhere = TierLedger::kNowhere;
  using Owner = TierLedger::Owner;

  // Methods that take a key and an image require the session's Owner.
  absl::StatusOr<StoreResult> StoreAt(size_t tier, const StateKey& key, const SessionImagePtr& image,
                                      std::shared_ptr<void> reserved = nullptr);
  absl::Status StoreFrom(size_t first, const StateKey& key, const SessionImagePtr& image);
  // Returns the parked state if `parked` is true and there is one, else the checkpoint.
  absl::StatusOr<SessionImagePtr> FetchFrom(const StateKey& key, bool parked);
  absl::StatusOr<SessionImagePtr> LoadFrom(size_t tier, const StateKey& key);
  // Loads the key's state, and checks that its version is one that the ledger expects (errors of Fetch).
  absl::StatusOr<SessionImagePtr> LoadKnown(size_t tier, const StateKey& key);
  size_t IndexOf(const StateTier& tier) const;
  // Replaces a damaged copy in the tier: stores another tier's copy there, or else records the copy of another durable
  // tier as the newest. False if there is no such copy that is recent enough.
  bool UseOtherCopy(size_t tier, const StateKey& key);
  void EraseCopies(const StateKey& key, TierLedger::TierSet tiers);
  absl::Status EraseOwed(size_t tier, const StateKey& key);
  // Erases the session in the durable tiers among `held`. Adds each to `erased`, or, if it failed, to `noted`.
  absl::Status MakeEndDurable(const StateKey& session, TierLedger::TierSet held, TierLedger::TierSet& erased,
                              TierLedger::TierSet& noted);
  absl::Status Note(const StateKey& session, TierLedger::TierSet tiers);
  // Removes the tier from the session's note, because it has erased its copies.
  absl::Status DropNote(size_t tier, const StateKey& session);
  void EraseSomeOwed();
  // Reserves quota for a state as TierLedger::TakeQuota does, with its errors. If the key's holder has too little left,
  // first drops its cached data in the tier, then moves its other states to lower tiers, if there are any.
  absl::StatusOr<std::shared_ptr<void>> TakeQuota(size_t tier, const StateKey& key, int64_t bytes);
  absl::Status MakeRoom(size_t tier, int64_t bytes);
  // Moves a state that AcquireNext returned to a lower tier, and gives up its lock. After an error it stays in the
  // tier, as the most recently used one.
  absl::Status MoveDown(size_t tier, const StateKey& key);
  absl::Status MoveOut(size_t tier, int64_t bytes);
  bool HasRoomFrom(size_t first, int64_t bytes) const;
  absl::Status TakesStatesFrom(size_t first) const;
  // OK, or why the tier accepts no states now: it is in a back-off, or hangs.
  absl::Status Takes(size_t tier) const;

  const std::vector<StateTier*> tiers_;
  const size_t durable_;  // kNowhere: none
  TierLedger ledger_;

  std::atomic<TierLedger::TierSet> unlisted_{0};
  struct ErasureNote {
    size_t keeper = kNowhere;     // the tier that stores the note
    std::set<std::string> tiers;  // names in the note; an earlier server may have had other tiers than this stack
  };
  absl::Mutex notes_mu_;
  std::map<StateKey, ErasureNote> notes_ ABSL_GUARDED_BY(notes_mu_);  // only the session's Owner changes its entry
};

}  // namespace gdn
