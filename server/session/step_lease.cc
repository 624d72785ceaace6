#include "server/session/step_lease.h"

#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

absl::Status NoClaim(const Session& session, int32_t layer) {
  return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                   StrCat("sessions/", session.id(), " layer ", layer,
                          " shares its state and has no slot set aside to write to; the state did not move"));
}

}  // namespace

StepLease& StepLease::operator=(StepLease&& other) noexcept {
  if (this != &other) {
    Abandon();
    pin_ = std::move(other.pin_);
    index_ = other.index_;
    layer_ = std::exchange(other.layer_, nullptr);
    before_ = other.before_;
    kind_ = other.kind_;
    taken_ = std::move(other.taken_);
    spare_ = std::exchange(other.spare_, false);
  }
  return *this;
}

int32_t StepLease::layer() const { return session().spec().layers[index_]; }

absl::StatusOr<StepSlots> StepLease::PrepareDecode() {
  StepSlots slots;
  if (!fresh() && layer_->slot.exclusive()) {
    slots.slot = slot();
    slots.base_slot = base_slot();
    return slots;
  }
  if (!layer_->claim.valid()) return NoClaim(session(), layer());
  taken_ = std::move(layer_->claim).Take();
  slots.slot = taken_.index();
  slots.zero = fresh();
  slots.base_slot = slots.zero ? slots.slot : base_slot();
  slots.copy_tail_from = slots.zero ? -1 : slot();
  return slots;
}

absl::StatusOr<int32_t> StepLease::PrepareAside() {
  if (layer_->claim.valid()) {
    taken_ = std::move(layer_->claim).Take();
  } else if (!fresh() && layer_->slot.exclusive()) {
    GDN_ASSIGN_OR_RETURN(taken_, layer_->slot.pool()->TakeSpare());
    spare_ = true;
  } else {
    return NoClaim(session(), layer());
  }
  return taken_.index();
}

void StepLease::ReturnTakenSlot() {
  if (!taken_.valid()) return;
  if (std::exchange(spare_, false)) {
    taken_ = SlotRef();
  } else {
    layer_->claim = SlotClaim::Return(std::exchange(taken_, SlotRef()));
  }
}

void StepLease::Commit(const StepOutcome& outcome, std::shared_ptr<StoredReply> reply) {
  const std::shared_ptr<Session> session = pin_.session().shared_from_this();
  std::vector<JoinedCall*> joined;
  StepReplyPtr kept;
  // Declared before the lock, so that they are freed after it: freeing slots takes other mutexes.
  SlotRef old_slot, old_base;
  SlotClaim surplus;
  if (taken_.valid()) {
    if (std::exchange(spare_, false)) layer_->slot.pool()->ExchangeSpare(layer_->slot, taken_);
    old_slot = std::exchange(layer_->slot, std::exchange(taken_, SlotRef()));
    if (!outcome.base_written && !layer_->shared_base.valid()) layer_->shared_base = std::move(old_slot);
  }
  if (outcome.base_written) old_base = std::exchange(layer_->shared_base, SlotRef());
  // The claim was for leaving a shared slot. The slot is not shared any more.
  if (layer_->claim.valid() && !fresh() && layer_->slot.exclusive()) surplus = std::move(layer_->claim);
  {
    absl::MutexLock lock(&session->mu_);
    Session::Layer& layer = *layer_;
    if (outcome.base_written) layer.base_version = session->environment_->NextBaseVersion();
    if (outcome.prefill) {
      layer.calls = layer.calls.Then(outcome.after.token_count - layer.progress.token_count);
    } else if (outcome.after != layer.progress) {
      layer.calls = PrefillCalls::Other();
    }
    layer.progress = outcome.after;
    // A step without tokens leaves a fresh layer fresh, and any kind may follow, as after an eviction.
    if (kind_ != InputKind::kNone && !fresh()) layer.kind = kind_;
    layer.busy = false;
    ++session->changes_;
    if (!layer.flight_id.empty()) {
      reply->request_id = std::exchange(layer.flight_id, {});
      reply->payload = layer.flight_payload;
      kept = std::move(reply);
      session->SetReply(layer, kept);
    }
    joined.swap(layer.joined);
  }
  if (kept != nullptr) session->environment_->replies().Trim();
  layer_ = nullptr;
  pin_.Release();
  for (JoinedCall* const call : joined) call->End(kept);
  if (session->environment_->on_progress) session->environment_->on_progress(session);
}

bool StepLease::TryCancel() { return GiveBack(/*though_joined=*/false, LayerBusy(session().id(), layer())); }

void StepLease::Abandon() {
  if (valid()) GiveBack(/*though_joined=*/true, LayerBusy(session().id(), layer()));
}

absl::Status StepLease::Lose(const absl::Status& why) {
  absl::Status told = why;
  if (ErrorReason(why) != reason::kDeviceFailed) told = pin_.session().LoseState(layer(), why);
  GiveBack(/*though_joined=*/true, told);
  return told;
}

bool StepLease::joined() const {
  absl::MutexLock lock(&pin_.session().mu_);
  return !layer_->joined.empty();
}

bool StepLease::GiveBack(bool though_joined, const absl::Status& to_joined) {
  std::vector<JoinedCall*> joined;
  Session& session = pin_.session();
  {
    absl::MutexLock lock(&session.mu_);
    if (!though_joined && !layer_->joined.empty()) return false;
    ReturnTakenSlot();
    layer_->busy = false;
    layer_->flight_id.clear();
    joined.swap(layer_->joined);
  }
  layer_ = nullptr;
  pin_.Release();
  for (JoinedCall* const call : joined) call->End(to_joined);
  return true;
}

}  // namespace gdn
