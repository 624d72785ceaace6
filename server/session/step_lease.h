// The right to advance one layer of a session by one step.
//
// The lease says where the step reads and writes: a slot that forks share is never written; the lease takes a slot of
// its own first, which was claimed when the fork was made. Nothing of it is the session's until Commit.
// Thread safety: for one thread at a time. Ownership: pins its session. A lease that dies uncommitted leaves the state
// as it was, and joined calls are told to try again. If a step that failed may have written what a retry cannot
// repeat, its lease ends by Lose.
//
//   GDN_ASSIGN_OR_RETURN(StepSlots slots, lease.PrepareDecode());
//   if (slots.copy_tail_from >= 0) ...copy log and convolution columns...
//   lease.Commit({.after = progress, .base_written = folded}, reply);
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/session/session.h"

namespace gdn {

// Where a decode step works.
struct StepSlots {
  int32_t slot = -1;            // log and convolution columns; a fold writes the base here
  int32_t base_slot = -1;       // where the base is read
  int32_t copy_tail_from = -1;  // >= 0: the slot is new, and its log and convolution columns are this slot's
  bool zero = false;            // the slot is new, and the state all zero

  // Whether a step that leaves the log with so many entries, folds not counted, writes over what a retry of it reads:
  // in the session's own slot a fold changes the base, unless that is another slot's, and what follows a fold in the
  // log overwrites the entries that were folded.
  bool CannotBeRepeated(int32_t entries) const {
    const bool is_new = zero || copy_tail_from >= 0;  // nothing of it is the session's yet
    return !is_new && (entries > kLogCapacity || (entries == kLogCapacity && base_slot == slot));
  }
};

struct StepOutcome {
  LayerProgress after;
  bool base_written = false;  // the base is the step's slot's own now
  bool prefill = false;       // it was one
};

class StepLease {
 public:
  StepLease() = default;
  StepLease(StepLease&& other) noexcept { *this = std::move(other); }
  StepLease& operator=(StepLease&& other) noexcept;
  ~StepLease() { Abandon(); }

  bool valid() const { return pin_.valid(); }
  const Session& session() const { return pin_.session(); }
  int32_t layer() const;
  const LayerProgress& before() const { return before_; }
  bool fresh() const { return !layer_->slot.valid(); }  // no slot yet: the state is all zero
  // All of the layer's slots, present and to come, are of this pool.
  const std::shared_ptr<StatePool>& pool() const {
    if (taken_.valid()) return taken_.pool();  // a fresh layer's claim is this slot now
    return fresh() ? layer_->claim.pool() : layer_->slot.pool();
  }

  // For work in place. INTERNAL where a slot is shared and none is claimed: a defect.
  absl::StatusOr<StepSlots> PrepareDecode();
  // For work aside: a slot to write the whole state to. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where all spares
  // are out.
  absl::StatusOr<int32_t> PrepareAside();
  bool needs_spare() const { return !layer_->claim.valid(); }  // for work aside
  // What a step aside reads; -1 where the layer is fresh.
  int32_t slot() const { return layer_->slot.index(); }
  int32_t base_slot() const { return layer_->shared_base.valid() ? layer_->shared_base.index() : slot(); }

  // The step happened. With a request id the reply is kept, and joined calls get it.
  void Commit(const StepOutcome& outcome, std::shared_ptr<StoredReply> reply);
  // The step has failed, and the state may have changed for good: the session is lost (Session::LoseState), and joined
  // calls hear so. Returns what they are told. If the device has failed, all of its states are beyond reach, and
  // nothing is said of this one.
  absl::Status Lose(const absl::Status& why);
  // Gives the lease back unless another call has joined it, which then wants the result: true where it was given back.
  bool TryCancel();
  bool joined() const;  // another call waits for the step's result

 private:
  friend class Session;
  void Abandon();
  bool GiveBack(bool though_joined, const absl::Status& to_joined);
  void ReturnTakenSlot();  // to where it came from

  SessionPin pin_;
  size_t index_ = 0;                 // of the layer in the session's spec
  Session::Layer* layer_ = nullptr;  // ours while we hold the lease
  LayerProgress before_;
  InputKind kind_ = InputKind::kNone;
  SlotRef taken_;       // what Commit puts in the slot's place
  bool spare_ = false;  // taken_ is a spare
};

// Exactly one of the three: a lease to compute with, a stored reply, or joined (the callback will be called once).
struct Admission {
  StepLease lease;
  StepReplyPtr stored;
  bool joined = false;
};

}  // namespace gdn
