#include "server/session/session_lease.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "server/session/session_errors.h"

namespace gdn {

SessionLease& SessionLease::operator=(SessionLease&& other) noexcept {
  if (this != &other) {
    Release();
    session_ = std::move(other.session_);
    held_ = std::exchange(other.held_, false);
  }
  return *this;
}

void SessionLease::Release() {
  const std::shared_ptr<Session> session = std::move(session_);
  if (session == nullptr) return;
  std::exchange(held_, false) ? session->gate().ReleaseHold() : session->gate().Unlock();
}

void SessionLease::Hold() {
  held_ = true;
  session_->gate().Hold();
}

SessionPin SessionLease::IntoPin() && {
  std::shared_ptr<Session> session = std::move(session_);
  session->gate().LockToPin();
  return SessionPin(std::move(session));
}

LayerSlots SessionLease::slots(size_t index) const {
  absl::MutexLock lock(&session_->mu_);
  const Session::Layer& layer = session_->layers_[index];
  if (!layer.slot.valid()) return {};
  return {.slot = layer.slot.index(),
          .base_slot = layer.shared_base.valid() ? layer.shared_base.index() : layer.slot.index(),
          .pool = &layer.slot.view()};
}

std::shared_ptr<StatePool> SessionLease::pool() const {
  absl::MutexLock lock(&session_->mu_);
  for (const Session::Layer& layer : session_->layers_) {
    if (layer.slot.valid()) return layer.slot.pool();
    if (layer.claim.valid()) return layer.claim.pool();
  }
  return nullptr;
}

SessionImage SessionLease::Describe(const std::string& numerics_id) const {
  const SessionInit& init = session_->init_;
  SessionImage image;
  image.numerics_id = numerics_id;
  absl::MutexLock lock(&session_->mu_);
  image.header = {.principal = init.principal,
                  .id = init.id,
                  .affinity = init.affinity,
                  .model = init.spec.model,
                  .family = init.spec.family,
                  .fingerprint = init.spec.fingerprint,
                  .slice = init.spec.slice,
                  .dims = init.spec.dims,
                  .layers = init.spec.layers,
                  .request = init.request,
                  .epoch = session_->epoch_,
                  .changes = static_cast<int64_t>(session_->changes_),
                  .create_time = init.create_time,
                  .born = SteadyNow() - (session_->environment_->clock().Now() - session_->born()),
                  .idle_ttl = init.idle_ttl,
                  .max_lifetime = init.max_lifetime,
                  .prefix_tokens = init.prefix_tokens,
                  .lease = init.lease == nullptr ? "" : init.lease->id(),
                  .lease_grace = init.lease == nullptr ? absl::ZeroDuration() : init.lease->grace(),
                  .accept_request_id = session_->accept_request_id_,
                  .accepted_tokens = session_->accepted_tokens_,
                  .accepted_path = session_->accepted_path_};
  for (size_t i = 0; i < session_->layers_.size(); ++i) {
    const Session::Layer& layer = session_->layers_[i];
    if (!layer.slot.valid()) continue;
    LayerImage& out = image.layers.emplace_back();
    out.layer = init.spec.layers[i];
    out.extent = layer.progress;
    out.kind = layer.kind;
    out.base_version = layer.base_version;
    out.reply = layer.reply;
    out.calls = layer.calls;
  }
  return image;
}

uint64_t SessionLease::changes() const {
  absl::MutexLock lock(&session_->mu_);
  return session_->changes_;
}

std::vector<int64_t> SessionLease::counts() const {
  absl::MutexLock lock(&session_->mu_);
  std::vector<int64_t> counts;
  for (const Session::Layer& layer : session_->layers_) counts.push_back(layer.progress.token_count);
  return counts;
}

void SessionLease::Unload() {
  // Declared before the lock, so that they are freed after it: freeing slots takes the pool's mutex.
  std::vector<SlotRef> slots;
  std::vector<SlotClaim> claims;
  absl::MutexLock lock(&session_->mu_);
  for (Session::Layer& layer : session_->layers_) {
    slots.push_back(std::move(layer.slot));
    slots.push_back(std::move(layer.shared_base));
    claims.push_back(std::move(layer.claim));
    layer.slot = SlotRef();
    layer.shared_base = SlotRef();
    session_->SetReply(layer, nullptr);
  }
  session_->resident_ = false;
}

void SessionLease::Install(const SessionImage& image, std::vector<SlotRef> slots, std::vector<SlotClaim> claims) {
  const absl::Cleanup trim = [this] { session_->environment_->replies().Trim(); };  // after the mutex is released
  absl::MutexLock lock(&session_->mu_);
  size_t next_claim = 0;
  size_t next = 0;
  for (size_t i = 0; i < session_->layers_.size(); ++i) {
    Session::Layer& layer = session_->layers_[i];
    if (next < image.layers.size() && image.layers[next].layer == session_->init_.spec.layers[i]) {
      layer.slot = std::move(slots[next]);
      layer.base_version = image.layers[next].base_version;
      if (layer.base_version == 0) layer.base_version = session_->environment_->NextBaseVersion();
      ++next;
    } else if (next_claim < claims.size()) {
      layer.claim = std::move(claims[next_claim++]);
    }
  }
  session_->resident_ = true;
  session_->Apply(image);
}

void SessionLease::InstallParked(const SessionImage& image) {
  absl::MutexLock lock(&session_->mu_);
  session_->Apply(image);
  for (Session::Layer& layer : session_->layers_) session_->SetReply(layer, nullptr);
}

void SessionLease::Restored(int64_t epoch) {
  absl::MutexLock lock(&session_->mu_);
  session_->epoch_ = epoch;
  if (absl::IsDataLoss(session_->lost_)) session_->lost_ = absl::OkStatus();
}

void SessionLease::Reset() {
  // Declared before the lock, so that they are freed after it: freeing slots takes other mutexes.
  std::vector<SlotRef> slots;
  absl::MutexLock lock(&session_->mu_);
  for (Session::Layer& layer : session_->layers_) {
    // A slot that a fork shares stays the fork's. The layer then has a claim of its own.
    if (layer.slot.valid() && !layer.claim.valid() && layer.slot.exclusive()) {
      layer.claim = SlotClaim::Return(std::exchange(layer.slot, SlotRef()));
    }
    slots.push_back(std::exchange(layer.slot, SlotRef()));
    slots.push_back(std::exchange(layer.shared_base, SlotRef()));
    layer.base_version = 0;
  }
  session_->Apply(SessionImage());
  ++session_->resets_;
}

void SessionLease::CountChange() {
  absl::MutexLock lock(&session_->mu_);
  ++session_->changes_;
}

int32_t SessionLease::claims_to_share() const {
  if (session_->is_snapshot()) return 0;  // it never writes
  absl::MutexLock lock(&session_->mu_);
  return static_cast<int32_t>(
      std::count_if(session_->layers_.begin(), session_->layers_.end(),
                    [](const Session::Layer& layer) { return layer.slot.valid() && !layer.claim.valid(); }));
}

std::shared_ptr<Session> SessionLease::Fork(SessionInit init, std::vector<SlotClaim> claims,
                                            std::vector<SlotClaim> own) {
  auto child = std::make_shared<Session>(std::move(init), std::move(claims), session_->environment_);
  absl::MutexLock lock(&session_->mu_);
  absl::MutexLock child_lock(&child->mu_);
  size_t next = 0;
  for (size_t i = 0; i < session_->layers_.size(); ++i) {
    Session::Layer& from = session_->layers_[i];
    Session::Layer& to = child->layers_[i];
    to.progress = from.progress;
    to.calls = from.calls;
    to.kind = from.kind;
    if (!from.slot.valid()) continue;
    to.slot = from.slot;
    to.shared_base = from.shared_base;
    to.base_version = from.base_version;
    if (!from.claim.valid() && next < own.size()) from.claim = std::move(own[next++]);
  }
  ++child->changes_;
  return child;
}

void SessionLease::MarkEnded(const absl::Status& why) {
  Unload();
  absl::MutexLock lock(&session_->mu_);
  session_->ended_ = why;
}

void SessionLease::MarkDeleted() { MarkEnded(SessionNotFound(session_->id())); }

}  // namespace gdn
