// Delta-rule problems for tests: random inputs, slices of them, a pool of state slots, and a reference in double.
//
// Thread safety: for one thread. Ownership: plain values that own their data; params built from them borrow it.
//
//   Random random(1);
//   DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, /*tokens=*/100, random);
//   HostStatePool pool(dims, /*slots=*/1);
//   std::vector<double> o = DeltaRuleInDouble(inputs, state);
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/common/delta_rule.h"
#include "kernels/slot_access.h"
#include "tests/support/aligned_buffer.h"
#include "tests/support/random.h"

namespace gdn {

// The tensors of a packed batch, dense.
struct DeltaRuleInputs {
  LayerDims dims;
  int64_t tokens = 0;
  std::vector<float> q;     // [tokens, H, K]
  std::vector<float> k;     // [tokens, H, K]
  std::vector<float> v;     // [tokens, HV, V]
  std::vector<float> g;     // [tokens, HV], or [tokens, HV, K]
  std::vector<float> beta;  // [tokens, HV]
};

// Returns dims of a bare operator.
LayerDims OperatorDims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim);
// Returns dims of a bare operator with a log decay for each key channel.
LayerDims ChannelDims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim);

// Makes random inputs: q and k of unit length (q times K^-0.5), normal v, g uniform in [g_low, 0], beta in [0, 1].
DeltaRuleInputs RandomDeltaRuleInputs(const LayerDims& dims, int64_t tokens, Random& random, float g_low = -1.0f);

// Returns rows [first, last) of a [tokens, width] tensor.
std::vector<float> SliceRows(const std::vector<float>& tensor, int64_t width, int64_t first, int64_t last);
// Appends `more` to `tensor`.
void Append(const std::vector<float>& more, std::vector<float>& tensor);

// Returns tokens [first, last) of the inputs.
DeltaRuleInputs Slice(const DeltaRuleInputs& inputs, int64_t first, int64_t last);

// Returns the rows of all parts, one after the other. All parts must have the same dims.
DeltaRuleInputs Concatenate(absl::Span<const DeltaRuleInputs> parts);

// Makes a random state with `log_rows` entries in its log, and convolution columns if the dims have a convolution.
SlotImage RandomSlotImage(const LayerDims& dims, int64_t log_rows, Random& random);

// State slots on the host, initially zero.
class HostStatePool {
 public:
  HostStatePool(const LayerDims& dims, int32_t slots, int32_t max_draft = 8);

  const StatePoolView& view() const { return view_; }
  absl::Span<float> slot(int32_t index);

 private:
  StatePoolView view_;
  AlignedBuffer<float> data_;
};

// Makes params for all of `inputs`. `batch` must cover inputs.tokens rows. `output`: [tokens, HV, V].
DeltaRuleParams MakeDeltaRuleParams(const DeltaRuleInputs& inputs, const StatePoolView& pool, const PackedBatch& batch,
                                    std::vector<float>& output);

// Returns the offsets of sequences of these lengths, for PackedBatch::cu_seqlens.
std::vector<int32_t> CumulativeLengths(const std::vector<int32_t>& lengths);

// Computes the delta rule of one sequence in double. Advances `state` [HV, K, V] and returns o [tokens, HV, V].
std::vector<double> DeltaRuleInDouble(const DeltaRuleInputs& inputs, std::vector<double>& state);

}  // namespace gdn
