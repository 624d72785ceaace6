// Delta-rule problems for tests: random inputs, slices of them, a pool of state slots, and the truth in double.
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
#include "base/aligned_buffer.h"
#include "kernels/common/delta_rule.h"
#include "kernels/slot_access.h"
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

// A bare operator's dims.
LayerDims OperatorDims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim);
// One with a log decay for each key channel.
LayerDims ChannelDims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim);

// Unit q (times K^-0.5) and k, normal v, g uniform in [g_low, 0], beta in [0, 1].
DeltaRuleInputs RandomDeltaRuleInputs(const LayerDims& dims, int64_t tokens, Random& random, float g_low = -1.0f);

// Rows [first, last) of a [tokens, width] tensor.
std::vector<float> SliceRows(const std::vector<float>& tensor, int64_t width, int64_t first, int64_t last);
// Puts `more` behind what `tensor` holds.
void Append(const std::vector<float>& more, std::vector<float>& tensor);

// Rows [first, last).
DeltaRuleInputs Slice(const DeltaRuleInputs& inputs, int64_t first, int64_t last);

// The rows of all parts, one after the other; all of the same dims.
DeltaRuleInputs Concatenate(absl::Span<const DeltaRuleInputs> parts);

// A random state with `log_rows` entries in its log, and convolution columns where the dims have a convolution.
SlotImage RandomSlotImage(const LayerDims& dims, int64_t log_rows, Random& random);

// State slots on the host, all zero at first.
class HostStatePool {
 public:
  HostStatePool(const LayerDims& dims, int32_t slots, int32_t max_draft = 8);

  const StatePoolView& view() const { return view_; }
  absl::Span<float> slot(int32_t index);

 private:
  StatePoolView view_;
  AlignedBuffer<float> data_;
};

// Params over all of `inputs`; `batch` must cover inputs.tokens rows, `output` holds [tokens, HV, V].
DeltaRuleParams MakeDeltaRuleParams(const DeltaRuleInputs& inputs, const StatePoolView& pool, const PackedBatch& batch,
                                    std::vector<float>& output);

// Offsets of sequences of the given lengths, as PackedBatch::cu_seqlens.
std::vector<int32_t> CumulativeLengths(const std::vector<int32_t>& lengths);

// The delta rule of one sequence, every number a double. `state` [HV, K, V] is advanced; returns o [tokens, HV, V].
std::vector<double> DeltaRuleInDouble(const DeltaRuleInputs& inputs, std::vector<double>& state);

}  // namespace gdn
