// Runs one layer of a model on a backend: prefill, decode and state of sequences that advance together.
//
// Thread safety: for one thread. Ownership: owns the states' memory; borrows the backend and the weights.
//
//   GDN_ASSERT_OK_AND_ASSIGN(auto sessions, LayerSessions::Make(*backend, model.layers().at(0), /*sequences=*/2));
//   GDN_ASSERT_OK_AND_ASSIGN(const auto output, sessions.Prefill(input));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/gdn_layer.h"
#include "kernels/slot_access.h"

namespace gdn {

class LayerSessions {
 public:
  static absl::StatusOr<LayerSessions> Make(Backend& backend, const LayerWeights& weights, int32_t sequences);

  // `input` and the result are [sequences, tokens, D].
  absl::StatusOr<std::vector<float>> Prefill(const std::vector<float>& input) { return Step(input, /*decode=*/false); }
  absl::StatusOr<std::vector<float>> Decode(const std::vector<float>& input) { return Step(input, /*decode=*/true); }

  // Returns the state with the log folded in.
  absl::StatusOr<SlotImage> Read(int32_t sequence);

 private:
  LayerSessions(Backend& backend, const LayerWeights& weights, int32_t sequences);
  absl::StatusOr<std::vector<float>> Step(const std::vector<float>& input, bool decode);

  Backend& backend_;
  const LayerWeights& weights_;
  GdnLayerRunner runner_;
  DeviceBuffer memory_;
  StatePoolView pool_;
  std::vector<int32_t> slots_;
  std::vector<int64_t> token_counts_;
  std::vector<int32_t> log_lengths_;
};

}  // namespace gdn
