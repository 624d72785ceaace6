// The delta rule on the GPU, token by token:  u = beta (v - e^g S^T k);  o = e^g S^T q + (k.q) u;  S <- e^g S + k u^T.
//
// The two products with the old state are independent of each other, so a token's critical path holds one reduction.
// Threads: 16 lanes hold kColumns columns of S in registers over all tokens; a block has 16 such groups of one
// (sequence, value head). The next token's rows are loaded while this one is computed.
// Decays by channel are delta_rule_scan_channel_gpu.hip's.
// Resources: no LDS. 128 VGPRs or fewer up to K = 256. Bound by the reduction's latency for few heads, else by VALU.

#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "kernels/delta_rule_scan/delta_rule_scan_gpu-inl.h"

namespace gdn {
namespace gpu {
namespace {

struct StoredGates {
  const float* g;
  const float* beta;

  __device__ __forceinline__ float LogDecayOf(int64_t at, int head) const { return g[at]; }
  __device__ __forceinline__ float BetaOf(int64_t at) const { return beta[at]; }
};

}  // namespace
}  // namespace gpu

absl::Status DeltaRuleScanGpu(const DeltaRuleParams& params, const gpu::DeviceBatch& batch, const gpu::Stream& stream) {
  if (params.pool.layout.dims().decays_by_channel()) return gpu::DeltaRuleChannelScanGpu(params, batch, stream);
  return WithBaseElement(params.pool.layout, [&](auto base) {
    const gpu::StoredGates gates{params.g, params.beta};
    return gpu::ScanWithGates<decltype(base)>("delta_rule_scan", params, gates, batch, stream);
  });
}

}  // namespace gdn
