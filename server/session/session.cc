#include "server/session/session.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace gdn {

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

Session::Session(SessionInit init, std::vector<SlotClaim> claims, SessionEnvironment* environment)
    : init_(std::move(init)), environment_(environment), layers_(init_.spec.layers.size()), epoch_(init_.epoch) {
  for (size_t i = 0; i < claims.size(); ++i) layers_[i].claim = std::move(claims[i]);
  resident_ = true;
  Touch();
}

Session::Session(SessionInit init, std::vector<LayerInfo> parked, SessionEnvironment* environment)
    : init_(std::move(init)), environment_(environment), layers_(init_.spec.layers.size()), epoch_(init_.epoch) {
  for (size_t i = 0; i < parked.size(); ++i) {
    layers_[i].progress = parked[i].progress;
    layers_[i].kind = parked[i].kind;
    layers_[i].durable_token_count = parked[i].durable_token_count;
  }
  Touch();
}

Session::~Session() {
  absl::MutexLock lock(&mu_);
  for (Layer& layer : layers_) SetReply(layer, nullptr);
}

Session::PinOutcome Session::TryPin(SessionPin* pin) {
  if (!gate_.TryPin()) return PinOutcome::kWait;
  SessionPin taken(shared_from_this());
  if (!resident()) return PinOutcome::kNotResident;
  Touch();
  *pin = std::move(taken);
  return PinOutcome::kPinned;
}

void Session::SetReply(Layer& layer, StepReplyPtr reply) {
  if (layer.reply != nullptr) environment_->Discharge(static_cast<int64_t>(layer.reply->output.size()));
  layer.reply = std::move(reply);
  if (layer.reply != nullptr) environment_->Charge(static_cast<int64_t>(layer.reply->output.size()));
}

LayerInfo Session::InfoLocked(size_t index) const {
  const Layer& layer = layers_[index];
  return {.layer = init_.spec.layers[index],
          .progress = layer.progress,
          .kind = layer.kind,
          .durable_token_count = layer.durable_token_count,
          .waiting_calls = layer.busy ? 1 + static_cast<int32_t>(layer.joined.size()) : 0};
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

absl::Status Session::CheckAlive() const {
  absl::MutexLock lock(&mu_);
  return deleted_ ? NotFound() : absl::OkStatus();
}

int64_t Session::epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

absl::Time Session::durable_time() const {
  absl::MutexLock lock(&mu_);
  return durable_time_;
}

void Session::NoteDurable(uint64_t changes, const std::vector<int64_t>& counts, absl::Time when) {
  absl::MutexLock lock(&mu_);
  durable_changes_ = changes;
  durable_time_ = when;
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].durable_token_count = counts[i];
}

Session::Undurable Session::UndurableLocked() const {
  Undurable undurable;
  undurable.since = durable_time_ == absl::InfinitePast() ? init_.create_time : durable_time_;
  for (const Layer& layer : layers_) {
    undurable.tokens = std::max(undurable.tokens, layer.progress.token_count - layer.durable_token_count);
  }
  // States that came with an import were put in by no commit.
  undurable.any = changes_ != durable_changes_ || undurable.tokens > 0;
  return undurable;
}

Session::Undurable Session::undurable() const {
  absl::MutexLock lock(&mu_);
  return UndurableLocked();
}

}  // namespace gdn
