#include "client/cpp/kept_steps.h"

#include <utility>

namespace gdn {
namespace {

// The tensor that tells how many tokens an input has: the one that every input of its kind has first.
template <typename Request>
const v1::Tensor& LeadingTensor(const Request& request) {
  if (request.has_hidden_states()) return request.hidden_states().hidden_states();
  if (request.has_projected()) return request.projected().mixed_qkv();
  return request.delta_rule().q();
}

int64_t Tokens(const v1::PrefillRequest& request) {
  const v1::Tensor& tensor = LeadingTensor(request);
  return tensor.shape_size() > 0 ? tensor.shape(0) : 0;
}

int64_t Tokens(const v1::DecodeRequest& request) {
  if (request.lengths_size() > 0) return request.lengths(0);
  const v1::Tensor& tensor = LeadingTensor(request);
  return tensor.shape_size() > 1 ? tensor.shape(1) : 0;
}

int64_t RequestBytes(const SessionStep& request) {
  return static_cast<int64_t>(std::visit([](const auto& step) { return step.ByteSizeLong(); }, request));
}

}  // namespace

int32_t StepLayer(const SessionStep& request) {
  return std::visit([](const auto& step) { return step.layer(); }, request);
}

bool IsDraft(const SessionStep& request) {
  const auto* const decode = std::get_if<v1::DecodeRequest>(&request);
  return decode != nullptr && decode->draft();
}

int64_t StepTokens(const SessionStep& request) {
  return std::visit([](const auto& step) { return Tokens(step); }, request);
}

void LayerSteps::Add(KeptStep step) {
  if (step.tokens == 0) return;
  step.bytes = RequestBytes(step.request);
  count_ = step.after();
  bytes_ += step.bytes;
  steps_.push_back(std::move(step));
}

void LayerSteps::AddDraft(KeptStep draft) {
  draft.bytes = RequestBytes(draft.request);
  bytes_ += draft.bytes;
  draft_ = std::move(draft);
}

void LayerSteps::AcceptDraft(DraftChoice choice) {
  if (!draft_.has_value()) return;
  KeptStep step = *std::move(draft_);
  draft_.reset();
  bytes_ -= step.bytes;
  step.tokens = choice.tokens();
  step.choice = std::move(choice);
  Add(std::move(step));
}

void LayerSteps::Trim(int64_t token_count) {
  while (!steps_.empty() && steps_.front().after() <= token_count) {
    begin_ = steps_.front().after();
    bytes_ -= steps_.front().bytes;
    steps_.pop_front();
  }
}

std::optional<size_t> LayerSteps::StepAt(int64_t token_count) const {
  if (token_count == count_) return steps_.size();
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].before == token_count) return i;
  }
  return std::nullopt;
}

}  // namespace gdn
