#include "server/session/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

std::string NameOf(const std::string& id) { return StrCat("sessions/", id); }

}  // namespace

Session::Session(std::string id, SessionSpec spec, std::string affinity, SlotReservation slots)
    : id_(std::move(id)),
      spec_(std::move(spec)),
      affinity_(affinity.empty() ? id_ : std::move(affinity)),
      create_time_(absl::Now()),
      slots_(std::move(slots)),
      layers_(spec_.layers.size()) {}

absl::Status Session::BusyError(int32_t layer) const {
  return MakeError(absl::StatusCode::kAborted, reason::kSessionBusy,
                   StrCat(NameOf(id_), " layer ", layer,
                          " has another step or an export in flight; wait for it, then send this one again"),
                   {{"session", NameOf(id_)}, {"layer", StrCat(layer)}});
}

absl::StatusOr<size_t> Session::LayerIndex(int32_t layer) const {
  const auto it = std::lower_bound(spec_.layers.begin(), spec_.layers.end(), layer);
  if (it == spec_.layers.end() || *it != layer) {
    const std::string expected = absl::StrJoin(spec_.layers, ",");
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayerNotGdn,
                     StrCat("layer ", layer, " is not a Gated DeltaNet layer of ", NameOf(id_), "; it has ", expected),
                     {{"session", NameOf(id_)}, {"layer", StrCat(layer)}, {"expected", expected}});
  }
  return static_cast<size_t>(it - spec_.layers.begin());
}

absl::Status Session::CheckKind(const StepRequest& request, const Layer& layer) const {
  if (spec_.model.empty() && request.kind != InputKind::kDeltaRule) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kInputNeedsModel,
                     StrCat(NameOf(id_), " is an operator session without weights; send delta_rule input, not ",
                            InputKindName(request.kind)),
                     {{"session", NameOf(id_)}});
  }
  if (layer.kind != InputKind::kNone && layer.kind != request.kind) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kInputKindMismatch,
                     StrCat(NameOf(id_), " layer ", request.layer, " began with ", InputKindName(layer.kind),
                            " input and cannot take ", InputKindName(request.kind)),
                     {{"session", NameOf(id_)},
                      {"layer", StrCat(request.layer)},
                      {"found", std::string(InputKindName(request.kind))},
                      {"expected", std::string(InputKindName(layer.kind))}});
  }
  return absl::OkStatus();
}

absl::StatusOr<Admission> Session::Admit(const StepRequest& request, StepReplyCallback on_joined) {
  GDN_ASSIGN_OR_RETURN(const size_t index, LayerIndex(request.layer));
  absl::MutexLock lock(&mu_);
  if (deleted_) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSessionNotFound,
                     StrCat("no session named '", NameOf(id_), "'"), {{"session", NameOf(id_)}});
  }
  Layer& layer = layers_[index];
  Admission admission;
  if (!request.request_id.empty()) {
    const bool in_flight = layer.busy && layer.flight_id == request.request_id;
    const bool stored = layer.reply != nullptr && layer.reply_id == request.request_id;
    if (in_flight || stored) {
      if ((in_flight ? layer.flight_payload : layer.reply_payload) != request.payload) {
        return MakeError(
            absl::StatusCode::kInvalidArgument, reason::kRequestIdReused,
            StrCat("request_id '", request.request_id, "' was used for another payload of ", NameOf(id_), " layer ",
                   request.layer, "; use a new id for a new step"),
            {{"session", NameOf(id_)}, {"layer", StrCat(request.layer)}, {"request_id", request.request_id}});
      }
      if (in_flight) {
        layer.joined.push_back(std::move(on_joined));
        admission.joined = true;
      } else {
        admission.stored = layer.reply;
      }
      return admission;
    }
  }
  if (request.expected_token_count.has_value() && *request.expected_token_count != layer.progress.token_count) {
    return MakeError(absl::StatusCode::kAborted, reason::kTokenCountMismatch,
                     StrCat(NameOf(id_), " layer ", request.layer, " has seen ", layer.progress.token_count,
                            " tokens, the call expected ", *request.expected_token_count),
                     {{"session", NameOf(id_)},
                      {"layer", StrCat(request.layer)},
                      {"token_count", StrCat(layer.progress.token_count)},
                      {"expected", StrCat(*request.expected_token_count)}});
  }
  if (layer.busy || locked_) return BusyError(request.layer);
  GDN_RETURN_IF_ERROR(CheckKind(request, layer));
  layer.busy = true;
  layer.flight_id = request.request_id;
  layer.flight_payload = request.payload;
  admission.lease.session_ = shared_from_this();
  admission.lease.index_ = index;
  admission.lease.slot_ = &layer.slot;
  admission.lease.before_ = layer.progress;
  admission.lease.kind_ = request.kind;
  return admission;
}

absl::StatusOr<SessionLease> Session::LockAll() {
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].busy || locked_) return BusyError(spec_.layers[i]);
  }
  locked_ = true;
  SessionLease lease;
  lease.session_ = shared_from_this();
  return lease;
}

absl::Status Session::MarkDeleted() {
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].busy || locked_) return BusyError(spec_.layers[i]);
  }
  deleted_ = true;
  return absl::OkStatus();
}

std::vector<LayerInfo> Session::Layers() const {
  absl::MutexLock lock(&mu_);
  std::vector<LayerInfo> infos;
  infos.reserve(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    infos.push_back({.layer = spec_.layers[i],
                     .progress = layer.progress,
                     .kind = layer.kind,
                     .waiting_calls = layer.busy ? 1 + static_cast<int32_t>(layer.joined.size()) : 0});
  }
  return infos;
}

StepLease& StepLease::operator=(StepLease&& other) noexcept {
  if (this != &other) {
    Abandon();
    session_ = std::move(other.session_);
    index_ = other.index_;
    slot_ = std::exchange(other.slot_, nullptr);
    before_ = other.before_;
    kind_ = other.kind_;
    took_slot_ = std::exchange(other.took_slot_, false);
  }
  return *this;
}

int32_t StepLease::layer() const { return session_->spec_.layers[index_]; }

const SlotReservation& StepLease::slots() const { return session_->slots_; }

int32_t StepLease::TakeSlot() {
  if (!slot_->valid()) {
    *slot_ = session_->slots_.Take();
    took_slot_ = true;
  }
  return slot_->index();
}

void StepLease::ReturnTakenSlot() {
  if (std::exchange(took_slot_, false)) slot_->Release();
}

void StepLease::SwapSlot(SlotLease aside) { SlotReservation::Swap(*slot_, std::move(aside)); }

void StepLease::Commit(const LayerProgress& after, StepReplyPtr reply) {
  std::vector<StepReplyCallback> joined;
  {
    absl::MutexLock lock(&session_->mu_);
    Session::Layer& layer = session_->layers_[index_];
    layer.progress = after;
    layer.kind = kind_;
    layer.busy = false;
    if (!layer.flight_id.empty()) {
      layer.reply_id = std::exchange(layer.flight_id, {});
      layer.reply_payload = layer.flight_payload;
      layer.reply = reply;
    }
    joined.swap(layer.joined);
    took_slot_ = false;
  }
  session_ = nullptr;
  slot_ = nullptr;
  for (auto& callback : joined) callback(reply);
}

bool StepLease::TryCancel() {
  {
    absl::MutexLock lock(&session_->mu_);
    if (!session_->layers_[index_].joined.empty()) return false;
    ReturnTakenSlot();
    session_->layers_[index_].busy = false;
    session_->layers_[index_].flight_id.clear();
  }
  session_ = nullptr;
  slot_ = nullptr;
  return true;
}

void StepLease::Abandon() {
  if (session_ == nullptr) return;
  std::vector<StepReplyCallback> joined;
  const absl::Status status = session_->BusyError(layer());
  {
    absl::MutexLock lock(&session_->mu_);
    ReturnTakenSlot();
    Session::Layer& layer = session_->layers_[index_];
    layer.busy = false;
    layer.flight_id.clear();
    joined.swap(layer.joined);
  }
  session_ = nullptr;
  slot_ = nullptr;
  for (auto& callback : joined) callback(status);
}

SessionLease& SessionLease::operator=(SessionLease&& other) noexcept {
  std::swap(session_, other.session_);
  return *this;
}

SessionLease::~SessionLease() {
  if (session_ == nullptr) return;
  absl::MutexLock lock(&session_->mu_);
  session_->locked_ = false;
}

int32_t SessionLease::slot(size_t index) const {
  absl::MutexLock lock(&session_->mu_);
  return session_->layers_[index].slot.index();
}

int32_t SessionLease::TakeSlot(size_t index) {
  absl::MutexLock lock(&session_->mu_);
  SlotLease& slot = session_->layers_[index].slot;
  if (!slot.valid()) slot = session_->slots_.Take();
  return slot.index();
}

void SessionLease::SetLayer(size_t index, const LayerProgress& progress, InputKind kind) {
  absl::MutexLock lock(&session_->mu_);
  session_->layers_[index].progress = progress;
  session_->layers_[index].kind = kind;
}

}  // namespace gdn
