// The tiers below the device as one place: a session's state is put into the fastest that has room; where there is
// none, states of whoever holds most for its share move down (TierHolders), what was not used for longest first.
//
// Which tier holds a state is the stack's own business; losing none is its promise: a state leaves a tier only once the
// next one has it.
// Thread safety: all methods from any thread; calls of one key are made one at a time by the caller, the stack's own
// moves wait for them and they for those. No lock is held while a tier reads or writes. Ownership: the tiers must
// outlive it.
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
#include "state_store/tiers/clean_marker.h"
#include "state_store/tiers/state_tier.h"
#include "state_store/tiers/tier_ledger.h"

namespace gdn {

// Of a session, beside its newest checkpoint.
inline constexpr size_t kMostNamedCheckpoints = 64;

class TierStack {
 public:
  // Fastest first; at most one of them is not durable, and it is the first.
  explicit TierStack(std::vector<StateTier*> tiers, const TierLedgerOptions& options = {});
  TierStack(const TierStack&) = delete;
  TierStack& operator=(const TierStack&) = delete;

  bool empty() const { return tiers_.empty(); }
  // The fastest durable tier, which is the first to be asked to take a checkpoint; nullptr where there is none.
  StateTier* durable() const { return durable_ < tiers_.size() ? tiers_[durable_] : nullptr; }
  // All durable tiers, fastest first.
  std::vector<StateTier*> DurableTiers() const;

  // Takes the state in, moving others down where that makes room. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where no
  // tier has room, UNAVAILABLE (TIER_UNAVAILABLE) where one that might have cannot be written, naming it, and
  // FAILED_PRECONDITION (STATES_TAKEN_OVER) where the only one is another server's now: the caller still has the state
  // then, and what was parked is parked. An image without its bases (LayerImage::has_base) goes to durable(), whose
  // KnownBases() it was made for, or nowhere.
  absl::Status Park(const StateKey& key, const SessionImagePtr& image);
  // As Park, for a state that is to leave the device for the tier `fastest` (a number of NumberFrom) or a slower one.
  absl::Status ParkFrom(size_t fastest, const StateKey& key, const SessionImagePtr& image);
  // A parked state goes down to the tier `fastest` or a slower one, unless it is there. Errors of Fetch and Park; it
  // stays where it was then.
  absl::Status Lower(size_t fastest, const StateKey& key);
  // The fastest tier that is not faster than one of this name ("host", "disk", "redis") is, whether there is such a one
  // or not; nullopt where all are.
  std::optional<size_t> NumberFrom(std::string_view name) const;
  // OK where a tier may take a state now; else why all of them are left alone for a while, which names no session.
  absl::Status TakesStates() const { return TakesStatesFrom(0); }
  // Says that a parked state, or a named checkpoint, is in a durable tier, as found by its List. Where two tiers have a
  // key, adopt the newer one last: the other goes once the state is stored again.
  void Adopt(const StateKey& key, const StateTier& tier, int64_t bytes,
             std::optional<StateVersion> version = std::nullopt);
  // Says that a durable tier has a copy of the key beside the one that was adopted. It is never used: it goes with the
  // key, or once that is stored again.
  void AddOtherCopy(const StateKey& key, const StateTier& tier, int64_t bytes);
  // The state, from wherever it is; it stays there. Of a session on the device, and of a named checkpoint: its copy in
  // a durable tier. Errors of StateTier::Load; DATA_LOSS (STATE_ROLLED_BACK) where a durable tier has an older one than
  // it took or was found to have, or none any more; FAILED_PRECONDITION (STATES_TAKEN_OVER) where it has a later one.
  absl::StatusOr<SessionImagePtr> Fetch(const StateKey& key);
  // UNAVAILABLE (TIER_UNAVAILABLE: tier) if the tier that the state rests in hangs: Fetch is refused until it answers.
  absl::Status CanFetch(const StateKey& key) const;
  // True if the state rests in memory, so that Fetch waits for no disk and no network.
  bool RestsInMemory(const StateKey& key) const;
  // The newest copy in a durable tier, though a newer state may rest in host memory; of whatever age it is there, for
  // whoever goes on from it under a new epoch. Errors of StateTier::Load.
  absl::StatusOr<SessionImagePtr> FetchCheckpoint(const StateKey& key);
  // The session is on the device again. Its copy in a tier that is not durable goes; a durable one stays as its newest
  // checkpoint.
  void Release(const StateKey& key);
  // Makes a checkpoint in the fastest durable tier that takes it, moving parked states down where one is full. Copies
  // in other durable tiers are then erased. An image without its bases goes to durable() or nowhere. If no tier takes
  // it: the error of StateTier::Store of one that cannot be reached, else of the first. FAILED_PRECONDITION
  // (NO_DURABLE_TIER).
  struct CheckpointPlaces {
    const StateTier* first = nullptr;  // where the caller has charged the holder for it; nullptr: durable()
    bool within_quota = true;          // in the tiers after that one the holder's quota counts
  };
  absl::StatusOr<StoreResult> Checkpoint(const StateKey& key, const SessionImagePtr& image,
                                         const CheckpointPlaces& places);
  absl::StatusOr<StoreResult> Checkpoint(const StateKey& key, const SessionImagePtr& image) {
    return Checkpoint(key, image, CheckpointPlaces());
  }
  // Bases that a checkpoint in durable() need not hold now.
  BaseVersions KnownBases(const StateKey& key) const;
  // The session's state rests where its newest checkpoint is, which has `bytes`.
  void RestAtCheckpoint(const StateKey& key, int64_t bytes);
  // The key's newest durable copy: its tier and its version; nullopt if either is not certain.
  std::optional<CleanMarker::Copy> NewestCopy(const StateKey& key);
  // The named checkpoints of a session, by id, as their tiers describe them; of a damaged one the key alone. Errors of
  // StateTier::Describe but for NOT_FOUND and DATA_LOSS.
  absl::StatusOr<std::vector<StoredSession>> ListCheckpoints(const StateKey& session);
  // RESOURCE_EXHAUSTED (TOO_MANY_CHECKPOINTS) where the session has kMostNamedCheckpoints, and not this one.
  absl::Status CheckNamedCheckpoints(const StateKey& key) const;
  // A named checkpoint goes, from every tier. NOT_FOUND (CHECKPOINT_NOT_FOUND). A tier's error: that tier still has to
  // erase it, which later calls see to, and it is listed no more.
  absl::Status EraseCheckpoint(const StateKey& key);
  // The session ends: all of its states and checkpoints go, from every tier. A durable tier with copies that cannot be
  // reached still has to erase them, which later calls see to; nothing of the session is found in it until then, by a
  // later server either, for a note of it is made in a durable tier. UNAVAILABLE (TIER_UNAVAILABLE: tier) where no tier
  // takes the note: the session has not ended. With `even_unnoted` it ends all the same, and OK says that a server that
  // starts before the tier has erased them may find them.
  absl::Status Erase(const StateKey& key, bool even_unnoted = false);
  // The session is another server's now, with what a shared tier has of it; what a tier of this process has goes.
  void Forget(const StateKey& session);
  // Takes over the notes of the server before. Call once, before List of any tier.
  absl::Status LoadErasureNotes();
  // What the tier has is not known yet, so it may have copies of any session.
  void SetUnlisted(const StateTier& tier, bool unlisted);

  // A durable tier has found its copy of the key damaged. `set_aside`, called as the session's owner, takes that copy
  // away; false: it had been replaced already. Another copy of the state is then stored in its place.
  enum class DamageOutcome {
    kGone,        // what was damaged is nobody's any more
    kCopyUsed,    // another copy of the state has taken its place
    kNotDurable,  // it was the session's checkpoint, and the session itself is on the device or in host memory
    kLost,        // it was the only one: who asks for it hears what the tier says
  };
  DamageOutcome HandleDamage(const StateTier& tier, const StateKey& key, absl::FunctionRef<bool()> set_aside);

  // Moves what is to leave first out of host memory until that is filled to 80%, so that the next Park finds
  // room; for a background thread, which runs it when WantsTrim(): filled above 90%, and a tier below that takes
  // states. After a Trim that moved nothing, WantsTrim() is false for a while (TierLedger::MayTrim).
  void Trim();
  bool WantsTrim() const;

  // Whether the tier has still to erase all of the session: what it has of it stands for nothing.
  bool IsErased(const StateTier& tier, const StateKey& key) const;
  // Whether the tier has a state of the session, of whatever age.
  bool HasCopy(const StateTier& tier, const StateKey& key) const;
  bool HasDurableCopy(const StateKey& key) const;
  // "host", "disk", "redis"; "" where the state is not parked.
  std::string PlaceOf(const StateKey& key) const;
  std::vector<TierUsage> usage() const;

 private:
  static constexpr size_t kNowhere = TierLedger::kNowhere;
  using Owner = TierLedger::Owner;

  // Those that take a key and an image are called by the session's owner; the others by any thread.
  absl::StatusOr<StoreResult> StoreAt(size_t tier, const StateKey& key, const SessionImagePtr& image,
                                      std::shared_ptr<void> reserved = nullptr);
  absl::Status StoreFrom(size_t first, const StateKey& key, const SessionImagePtr& image);
  // `parked`: from where it rests, if it does; else its checkpoint.
  absl::StatusOr<SessionImagePtr> FetchFrom(const StateKey& key, bool parked);
  absl::StatusOr<SessionImagePtr> LoadFrom(size_t tier, const StateKey& key);
  // LoadFrom of what the ledger says is there: no older state, no later one.
  absl::StatusOr<SessionImagePtr> LoadKnown(size_t tier, const StateKey& key);
  size_t IndexOf(const StateTier& tier) const;
  // Whether the tier has the key's state again, or another durable one has it now.
  bool UseOtherCopy(size_t tier, const StateKey& key);
  void EraseCopies(const StateKey& key, TierLedger::TierSet tiers);
  absl::Status EraseOwed(size_t tier, const StateKey& key);
  // Erases what the durable ones of the tiers `held` have of the session, `erased`, or notes that they are to.
  absl::Status MakeEndDurable(const StateKey& session, TierLedger::TierSet held, TierLedger::TierSet& erased,
                              TierLedger::TierSet& noted);
  absl::Status Note(const StateKey& session, TierLedger::TierSet tiers);
  // The tier has paid.
  absl::Status DropNote(size_t tier, const StateKey& session);
  void EraseSomeOwed();
  // The right to put the key's state into the tier, as far as its holder's quota there goes; moves others of the
  // holder down for it.
  absl::StatusOr<std::shared_ptr<void>> TakeQuota(size_t tier, const StateKey& key, int64_t bytes);
  absl::Status MakeRoom(size_t tier, int64_t bytes);
  // The state, whose Owner the caller becomes, goes to a lower tier.
  absl::Status MoveDown(size_t tier, const StateKey& key);
  absl::Status MoveOut(size_t tier, int64_t bytes);
  bool HasRoomFrom(size_t first, int64_t bytes) const;
  absl::Status TakesStatesFrom(size_t first) const;
  // OK, or why the tier is given no states now: it failed a moment ago, or hangs.
  absl::Status Takes(size_t tier) const;

  const std::vector<StateTier*> tiers_;
  const size_t durable_;  // kNowhere: none
  TierLedger ledger_;

  std::atomic<TierLedger::TierSet> unlisted_{0};
  struct ErasureNote {
    size_t keeper = kNowhere;     // the tier that has the note
    std::set<std::string> tiers;  // of which there may be others than this stack's
  };
  absl::Mutex notes_mu_;
  std::map<StateKey, ErasureNote> notes_ ABSL_GUARDED_BY(notes_mu_);  // each changed by its session's owner
};

}  // namespace gdn
