#include "tests/server/model/layer_sessions.h"

#include <numeric>

#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr int32_t kMaxDraft = 8;

}  // namespace

absl::StatusOr<LayerSessions> LayerSessions::Make(Backend& backend, const LayerWeights& weights, int32_t sequences) {
  LayerSessions sessions(backend, weights, sequences);
  GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(weights.spec.dims, kMaxDraft));
  GDN_ASSIGN_OR_RETURN(sessions.memory_,
                       DeviceBuffer::Make(backend, static_cast<size_t>(sequences * layout.slot_bytes())));
  sessions.pool_ = {.layout = layout, .data = sessions.memory_.floats(), .slot_count = sequences};
  for (const int32_t slot : sessions.slots_) GDN_RETURN_IF_ERROR(backend.ZeroSlot(sessions.pool_, slot));
  return sessions;
}

absl::StatusOr<SlotImage> LayerSessions::Read(int32_t sequence) {
  const int32_t slot = slots_[static_cast<size_t>(sequence)];
  int32_t& log_length = log_lengths_[static_cast<size_t>(sequence)];
  GDN_RETURN_IF_ERROR(
      backend_.MaterializeState({.pool = pool_, .count = 1, .src = &slot, .dst = &slot, .log_lengths = &log_length}));
  log_length = 0;
  return ReadSlot(backend_, pool_, slot, 0, token_counts_[static_cast<size_t>(sequence)]);
}

LayerSessions::LayerSessions(Backend& backend, const LayerWeights& weights, int32_t sequences)
    : backend_(backend),
      weights_(weights),
      runner_(backend),
      slots_(static_cast<size_t>(sequences)),
      token_counts_(static_cast<size_t>(sequences), 0),
      log_lengths_(static_cast<size_t>(sequences), 0) {
  std::iota(slots_.rbegin(), slots_.rend(), 0);  // not in the order of the sequences
}

absl::StatusOr<std::vector<float>> LayerSessions::Step(const std::vector<float>& input, bool decode) {
  const auto sequences = static_cast<int32_t>(slots_.size());
  const auto length =
      static_cast<int32_t>(static_cast<int64_t>(input.size()) / weights_.spec.dims.hidden_size / sequences);
  std::vector<int32_t> cu_seqlens(slots_.size() + 1);
  for (int32_t i = 0; i <= sequences; ++i) cu_seqlens[static_cast<size_t>(i)] = i * length;
  const size_t bytes = input.size() * sizeof(float);
  GDN_ASSIGN_OR_RETURN(DeviceBuffer x, DeviceBuffer::Make(backend_, bytes));
  GDN_ASSIGN_OR_RETURN(DeviceBuffer y, DeviceBuffer::Make(backend_, bytes));
  GDN_RETURN_IF_ERROR(backend_.CopyIn(x.data(), input.data(), bytes));
  LayerStep step;
  step.weights = &weights_;
  step.pool = pool_;
  step.batch = {.sequences = sequences, .cu_seqlens = cu_seqlens.data(), .slots = slots_.data()};
  step.token_counts = token_counts_.data();
  step.kind = InputKind::kHiddenStates;
  step.hidden_states = x.floats();
  step.output = y.floats();
  GDN_RETURN_IF_ERROR(decode ? runner_.Decode(step, log_lengths_.data()) : runner_.Prefill(step));
  std::vector<float> output(input.size());
  GDN_RETURN_IF_ERROR(backend_.CopyOut(output.data(), y.data(), bytes));
  GDN_RETURN_IF_ERROR(backend_.Synchronize());
  for (int64_t& count : token_counts_) count += length;
  return output;
}

}  // namespace gdn
