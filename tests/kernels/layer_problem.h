// A layer with random weights, random inputs, and steps that run in host memory.
//
// Thread safety: for one thread. Ownership: a LayerProblem owns its weights and slots; steps made from it borrow them.
//
//   LayerProblem problem({.layout = ProjectionLayout::kFlat}, /*slots=*/2);
//   std::vector<float> y = problem.Prefill(runner, {.slot = 0, .token_count = 0, .x = x});
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/layer/gdn_layer.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/random.h"

namespace gdn {

struct LayerProblemOptions {
  LayerDims dims = {
      .key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 24, .conv_width = 4, .hidden_size = 48};
  ProjectionLayout layout = ProjectionLayout::kInterleaved;
  float beta_scale = 1.0f;
  GateActivation output_gate = GateActivation::kSilu;
  DType dtype = DType::kF32;
  int32_t max_draft = 8;
  // The next three fields are for dims with a decay for each channel.
  float decay_lower_bound = 0.0f;  // below 0: the bounded gate
  int32_t decay_rank = 0;
  int32_t output_gate_rank = 0;
  bool tiled_out = false;  // store the columns of the out-projection tiled; the layer computes the same
};

// Returns options of a KDA layer: low-rank a and z, the bounded gate, a sigmoid output gate.
LayerProblemOptions ChannelLayerOptions();

// A session's part of a step. Negative slots are padding.
struct Rows {
  int32_t slot = 0;
  int64_t token_count = 0;
  int32_t log_length = 0;
  std::vector<float> x = {};  // [tokens, D]
};

class LayerProblem {
 public:
  LayerProblem(const LayerProblemOptions& options, int32_t slots);
  LayerProblem(const LayerProblem&) = delete;
  LayerProblem& operator=(const LayerProblem&) = delete;

  const LayerWeights& weights() const { return weights_; }
  HostStatePool& pool() { return pool_; }
  int64_t hidden_size() const { return weights_.spec.dims.hidden_size; }
  std::vector<float> Inputs(int64_t tokens) { return random_.Normal(tokens * hidden_size()); }

  // Return the outputs of all rows; errors fail the test. Decode also updates the rows' token_count and log_length.
  std::vector<float> Prefill(GdnLayerRunner& runner, const std::vector<Rows>& rows);
  std::vector<float> Decode(GdnLayerRunner& runner, std::vector<Rows>& rows, bool draft = false);

 private:
  void TileOut();

  Random random_;
  std::vector<std::vector<char>> storage_;
  LayerWeights weights_;
  HostStatePool pool_;
};

// The packed form of `rows`. `step` borrows from this object.
struct PackedRows {
  PackedRows(const std::vector<Rows>& rows, const LayerWeights& weights, const StatePoolView& pool);
  PackedRows(const PackedRows&) = delete;
  PackedRows& operator=(const PackedRows&) = delete;

  // Returns the size of the inputs, rounded up to 64 bytes. StageIn puts the index arrays after them.
  size_t staged_bytes() const { return (x.size() * sizeof(float) + 63) / 64 * 64; }
  // Writes the inputs to `host`, and returns params with which StageIn copies them and the index arrays to `device`.
  StageInParams Staged(void* device, void* host) const;

  std::vector<int32_t> cu_seqlens{0};
  std::vector<int32_t> slots;
  std::vector<int64_t> token_counts;
  std::vector<int32_t> log_lengths;
  std::vector<float> x;
  std::vector<float> y;
  LayerStep step;
};

}  // namespace gdn
