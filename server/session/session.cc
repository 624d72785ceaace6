#include "server/session/session.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/session/session_errors.h"
#include "server/session/session_lease.h"
#include "server/session/step_lease.h"

namespace gdn {
namespace {

SessionInit WithAccount(SessionInit init, SessionEnvironment& environment) {
  if (init.account == nullptr) init.account = environment.ledger().AccountOf(init.principal, /*peer=*/"");
  return init;
}

}  // namespace

SessionPin& SessionPin::operator=(SessionPin&& other) noexcept {
  std::swap(session_, other.session_);
  return *this;
}

SessionPin SessionPin::Another() const {
  session_->gate_.PinAgain();
  return SessionPin(session_);
}

void SessionPin::Release() {
  if (const auto session = std::move(session_); session != nullptr) {
    session->Touch();
    session->gate_.Unpin();
  }
}

Session::Session(SessionInit init, SessionEnvironment* environment)
    : init_(WithAccount(std::move(init), *environment)),
      environment_(environment),
      snapshot_loss_mark_(environment->snapshots().WatchMark(init_.principal)),
      born_(environment->clock().Now() - init_.age),
      layers_(init_.spec.layers.size()),
      epoch_(init_.epoch),
      changes_(static_cast<uint64_t>(init_.changes)) {
  Touch();
  // So that snapshots of an earlier server process are evicted before newer ones, the oldest first. Ages in files end
  // when the file was written, so they do not give the order; the wall clock decides about the order alone.
  const absl::Duration age = absl::Now() - init_.create_time;
  if (is_snapshot() && age > absl::ZeroDuration()) {
    last_used_.store((environment->clock().Now() - age).ToNanos(), std::memory_order_relaxed);
  }
}

Session::Session(SessionInit init, std::vector<SlotClaim> claims, SessionEnvironment* environment)
    : Session(std::move(init), environment) {
  for (size_t i = 0; i < claims.size(); ++i) layers_[i].claim = std::move(claims[i]);
  resident_ = true;
}

Session::Session(SessionInit init, std::vector<LayerInfo> parked, SessionEnvironment* environment)
    : Session(std::move(init), environment) {
  for (size_t i = 0; i < parked.size(); ++i) {
    layers_[i].progress = parked[i].progress;
    layers_[i].calls = parked[i].calls;
    layers_[i].kind = parked[i].kind;
    layers_[i].durable_token_count = parked[i].durable_token_count;
  }
}

Session::PinOutcome Session::TryPin(SessionPin* pin) {
  {
    absl::MutexLock lock(&mu_);
    if (!gate_.PinnableLocked()) return PinOutcome::kWait;
    if (!resident_) return PinOutcome::kNotResident;
    gate_.TryPinLocked();
  }
  *pin = SessionPin(shared_from_this());
  return PinOutcome::kPinned;
}

SessionLease Session::TryLock() { return gate_.TryLock() ? SessionLease(shared_from_this()) : SessionLease(); }

Session::LockAwaiter Session::Lock(Deadline deadline) { return LockAwaiter(*this, std::move(deadline)); }

void Session::SetReply(Layer& layer, StepReplyPtr reply) {
  layer.kept = {};
  layer.reply = std::move(reply);
  if (layer.reply == nullptr || layer.reply->output.empty()) return;
  layer.kept = environment_->replies().Keep(
      init_.account,
      {.session = weak_from_this(), .layer = static_cast<size_t>(&layer - layers_.data()), .reply = layer.reply.get()},
      static_cast<int64_t>(layer.reply->output.size()));
}

void Session::DropOutput(size_t index, const StoredReply* reply) {
  StepReplyPtr dropped;  // freed after the mutex is released
  absl::MutexLock lock(&mu_);
  Layer& layer = layers_[index];
  if (layer.reply.get() != reply) return;
  auto rest = std::make_shared<StoredReply>();
  rest->request_id = reply->request_id;
  rest->payload = reply->payload;
  rest->token_count = reply->token_count;
  rest->compute_time_us = reply->compute_time_us;
  rest->output_dropped = true;
  dropped = std::exchange(layer.reply, std::move(rest));
}

LayerInfo Session::InfoLocked(size_t index) const {
  const Layer& layer = layers_[index];
  return {.layer = init_.spec.layers[index],
          .progress = layer.progress,
          .kind = layer.kind,
          .durable_token_count = layer.durable_token_count,
          .waiting_calls = layer.busy ? 1 + static_cast<int32_t>(layer.joined.size()) : 0,
          .calls = layer.calls};
}

std::vector<LayerInfo> Session::Layers() const {
  absl::MutexLock lock(&mu_);
  std::vector<LayerInfo> infos;
  infos.reserve(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) infos.push_back(InfoLocked(i));
  return infos;
}

absl::StatusOr<LayerInfo> Session::LayerAt(int32_t layer) const {
  GDN_ASSIGN_OR_RETURN(const size_t index, LayerIndex(layer));
  absl::MutexLock lock(&mu_);
  return InfoLocked(index);
}

bool Session::resident() const {
  absl::MutexLock lock(&mu_);
  return resident_;
}

int32_t Session::shared_layers() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int32_t>(
      std::ranges::count_if(layers_, [](const Layer& layer) { return layer.slot.valid() && !layer.slot.exclusive(); }));
}

absl::Status Session::CheckAlive() const {
  absl::MutexLock lock(&mu_);
  return AliveLocked();
}

void Session::StopServing(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (lost_.ok() || absl::IsDataLoss(lost_)) lost_ = why;
}

absl::Status Session::LoseState(int32_t layer, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (lost_.ok()) lost_ = StateLost(id(), layer, /*durable=*/durable_.shown > absl::InfinitePast(), why);
  return lost_;
}

bool Session::state_is_lost() const {
  absl::MutexLock lock(&mu_);
  return ended_.ok() && absl::IsDataLoss(lost_);
}

absl::Status Session::CheckRestorable() const { return state_is_lost() ? absl::OkStatus() : CheckAlive(); }

absl::Status Session::CheckNotLost() const {
  absl::MutexLock lock(&mu_);
  return lost_;
}

int64_t Session::epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

int64_t Session::resets() const {
  absl::MutexLock lock(&mu_);
  return resets_;
}

StateVersion Session::version() const {
  absl::MutexLock lock(&mu_);
  return {.created = absl::ToUnixNanos(init_.create_time), .epoch = epoch_, .changes = static_cast<int64_t>(changes_)};
}

absl::Time Session::durable_time() const {
  absl::MutexLock lock(&mu_);
  return durable_.shown;
}

void Session::NoteDurable(uint64_t changes, const std::vector<int64_t>& counts, const Moment& when) {
  absl::MutexLock lock(&mu_);
  durable_changes_ = changes;
  durable_ = when;
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].durable_token_count = counts[i];
}

Session::Undurable Session::UndurableLocked() const {
  Undurable undurable;
  undurable.since = std::max(born_, durable_.at);
  for (const Layer& layer : layers_) {
    undurable.tokens = std::max(undurable.tokens, layer.progress.token_count - layer.durable_token_count);
  }
  // Imported states came without a commit, so compare the token counts too.
  undurable.any = changes_ != durable_changes_ || undurable.tokens > 0;
  return undurable;
}

Session::Undurable Session::undurable() const {
  absl::MutexLock lock(&mu_);
  return UndurableLocked();
}

void Session::Apply(const SessionImage& image) {
  size_t next = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const bool there = next < image.layers.size() && image.layers[next].layer == init_.spec.layers[i];
    const LayerImage* from = there ? &image.layers[next++] : nullptr;
    layer.progress = there ? from->extent : LayerProgress();
    layer.calls = there ? from->calls : PrefillCalls();
    layer.kind = there ? from->kind : InputKind::kNone;
    SetReply(layer, there ? from->reply : nullptr);
  }
  accept_request_id_ = image.header.accept_request_id;
  accepted_tokens_ = image.header.accepted_tokens;
  accepted_path_ = image.header.accepted_path;
}

absl::StatusOr<size_t> Session::LayerIndex(int32_t layer) const {
  const std::vector<int32_t>& layers = spec().layers;
  const auto it = std::lower_bound(layers.begin(), layers.end(), layer);
  if (it == layers.end() || *it != layer) return LayerNotGdn(id(), layer, layers);
  return static_cast<size_t>(it - layers.begin());
}

SessionFacts Session::FactsLocked() const {
  return {.id = id(),
          .epoch = epoch_,
          .has_model = !spec().model.empty(),
          .accept_request_id = accept_request_id_,
          .accepted_tokens = accepted_tokens_,
          .accepted_path = accepted_path_};
}

LayerFacts Session::FactsLocked(size_t index) const {
  const Layer& layer = layers_[index];
  LayerFacts facts{.layer = spec().layers[index],
                   .token_count = layer.progress.token_count,
                   .draft_length = layer.progress.draft_length,
                   .draft_parents = layer.progress.draft_parents,
                   .kind = layer.kind,
                   .busy = layer.busy,
                   .in_flight = {.request_id = layer.flight_id, .payload = layer.flight_payload}};
  if (layer.reply == nullptr) return facts;
  facts.stored = {.request_id = layer.reply->request_id, .payload = layer.reply->payload};
  facts.output_dropped = layer.reply->output_dropped;
  return facts;
}

absl::StatusOr<Admission> Session::Admit(SessionPin pin, const StepRequest& request, JoinedCall* joined) {
  GDN_ASSIGN_OR_RETURN(const size_t index, LayerIndex(request.layer));
  absl::MutexLock lock(&mu_);
  GDN_RETURN_IF_ERROR(AliveLocked());
  GDN_ASSIGN_OR_RETURN(const StepAnswer answer, AnswerStep(FactsLocked(), FactsLocked(index), request));
  Layer& layer = layers_[index];
  Admission admission;
  if (answer == StepAnswer::kStored) {
    admission.stored = layer.reply;
  } else if (answer == StepAnswer::kJoin) {
    layer.joined.push_back(joined);
    admission.joined = true;
  } else {
    layer.busy = true;
    layer.flight_id = request.request_id;
    layer.flight_payload = request.payload;
    admission.lease = StepLease(std::move(pin), index, layer, request.kind);
  }
  return admission;
}

absl::StatusOr<std::vector<StepLease>> Session::AdmitAccept(const SessionPin& pin, const Acceptance& request) {
  absl::MutexLock lock(&mu_);
  GDN_RETURN_IF_ERROR(AliveLocked());
  std::vector<LayerFacts> facts;
  facts.reserve(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) facts.push_back(FactsLocked(i));
  GDN_ASSIGN_OR_RETURN(const bool done, WasAccepted(FactsLocked(), facts, request));
  std::vector<StepLease> leases;
  for (size_t i = 0; i < layers_.size() && !done; ++i) {
    Layer& layer = layers_[i];
    if (layer.progress.draft_length == 0) continue;
    layer.busy = true;
    layer.flight_id.clear();
    gate_.PinAgainLocked();  // possible because the caller has a pin
    leases.push_back(StepLease(SessionPin(shared_from_this()), i, layer, InputKind::kNone));
  }
  return leases;
}

void Session::NoteAccepted(const Acceptance& request) {
  if (request.request_id.empty()) return;
  absl::MutexLock lock(&mu_);
  accept_request_id_ = request.request_id;
  accepted_tokens_ = request.accepted_tokens;
  accepted_path_ = request.path;
  ++changes_;
}

}  // namespace gdn
