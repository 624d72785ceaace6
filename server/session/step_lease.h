// The right to advance one layer of a session by one step.
//
// The lease says which slots the step reads and writes. A slot that forks share is never written: the lease first takes
// the slot that was claimed when the fork was made. The step does not change the session before Commit.
// Thread safety: for one thread at a time. Ownership: pins its session. A lease that is destroyed uncommitted leaves
// the state unchanged, and joined calls are told to retry. If a failed step may have made a change that a retry cannot
// repeat, end its lease with Lose.
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

// The slots that a decode step reads and writes.
struct StepSlots {
  int32_t slot = -1;            // slot of log and convolution columns; a fold writes the base here
  int32_t base_slot = -1;       // slot that the base is read from
  int32_t copy_tail_from = -1;  // >= 0: `slot` is new, and needs a copy of this slot's log and convolution columns
  bool zero = false;            // `slot` is new and must be zeroed

  // True if the step overwrites data that a retry of it would read. `entries`: log entries after the step if nothing
  // were folded. In the session's own slot a fold changes the base, unless the base is read from another slot, and
  // entries that follow a fold overwrite the folded ones.
  bool CannotBeRepeated(int32_t entries) const {
    const bool is_new = zero || copy_tail_from >= 0;  // the slot is not the session's before Commit
    return !is_new && (entries > kLogCapacity || (entries == kLogCapacity && base_slot == slot));
  }
};

struct StepOutcome {
  LayerProgress after;
  bool base_written = false;  // the step's slot has its own base now
  bool prefill = false;       // the step was a prefill
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
  // Records that the step first accepts the layer's draft, so that before() is `after`, the progress that the
  // acceptance leaves. The acceptance takes effect with Commit, or not at all.
  void Accept(LayerProgress after) { before_ = std::move(after); }
  bool fresh() const { return !layer_->slot.valid(); }  // the layer has no slot yet: its state is zero
  // The pool of all slots that the layer has or will get.
  const std::shared_ptr<StatePool>& pool() const {
    if (taken_.valid()) return taken_.pool();  // the claim of a fresh layer was turned into this slot
    return fresh() ? layer_->claim.pool() : layer_->slot.pool();
  }

  // Takes the slots for a step that works in place (a decode); call one Prepare method, once. INTERNAL if a slot is
  // shared and none is claimed, which is a defect.
  absl::StatusOr<StepSlots> PrepareDecode();
  // Takes a slot to which a step aside (a prefill) writes the whole state, and returns its index. RESOURCE_EXHAUSTED
  // (STATE_BUDGET_EXHAUSTED) if no spare slot is free; INTERNAL as PrepareDecode.
  absl::StatusOr<int32_t> PrepareAside();
  bool needs_spare() const { return !layer_->claim.valid(); }  // PrepareAside will take a spare slot
  // The slots that a step aside reads; -1 if the layer is fresh.
  int32_t slot() const { return layer_->slot.index(); }
  int32_t base_slot() const { return layer_->shared_base.valid() ? layer_->shared_base.index() : slot(); }

  // Applies the step to the session, ends the lease and releases its pin. With a request id `reply`, which needs no id
  // and payload yet, is stored, and joined calls get it; else it may be null.
  void Commit(const StepOutcome& outcome, std::shared_ptr<StoredReply> reply);
  // Ends the lease of a failed step that may have changed the state for good: the session is lost (Session::LoseState).
  // Returns the error, which joined calls get too. If `why` is DEVICE_FAILED, the session is not marked as lost, and
  // the error is `why`.
  absl::Status Lose(const absl::Status& why);
  // Gives the lease back without a commit, unless another call has joined the step and wants its result. Returns true
  // if it was given back; the lease is not valid then.
  bool TryCancel();
  bool joined() const;  // another call waits for the step's result

 private:
  friend class Session;
  StepLease(SessionPin pin, size_t index, Session::Layer& layer, InputKind kind)
      : pin_(std::move(pin)), index_(index), layer_(&layer), before_(layer.progress), kind_(kind) {}
  void Abandon();
  // Ends the lease without a commit: the layer is free again, and joined calls end with `to_joined`. Without
  // `though_joined`, does nothing and returns false if a call has joined.
  bool GiveBack(bool though_joined, const absl::Status& to_joined);
  void ReturnTakenSlot();  // returns taken_ to the spares or to the layer's claim

  SessionPin pin_;
  size_t index_ = 0;                 // index of the layer in the session's spec
  Session::Layer* layer_ = nullptr;  // this lease has the layer until it ends
  LayerProgress before_;
  InputKind kind_ = InputKind::kNone;
  SlotRef taken_;       // slot that Commit makes the layer's
  bool spare_ = false;  // taken_ is a spare
};

// The answer to a step, exactly one of three: a lease to compute with, a stored reply, or joined (the JoinedCall gets
// the reply of the step in flight and ends once).
struct Admission {
  StepLease lease;
  StepReplyPtr stored;
  bool joined = false;
};

}  // namespace gdn
