// Gates and recurrent step in one launch: delta_rule_scan with g and beta computed where a token is loaded.
//
// Thread mapping and bound: delta_rule_scan_gpu.hip. Each of a head's groups computes the gates anew: a few
// instructions beside the reductions of a token, against two arrays and a launch.

#include "base/status_macros.h"
#include "kernels/delta_rule_scan/delta_rule_scan_gpu-inl.h"
#include "kernels/gpu/gate_math.h"
#include "kernels/primitives/sigmoid_gating_recurrent/sigmoid_gating_recurrent.h"

namespace gdn {
namespace gpu {
namespace {

struct SigmoidGates {
  const float* a;
  const float* b;
  const float* a_log;
  const float* dt_bias;
  bool negative_exp;

  __device__ __forceinline__ float LogDecayOf(int64_t at, int head) const {
    return LogDecay(a[at], a_log[head], dt_bias[head], negative_exp);
  }
  __device__ __forceinline__ float BetaOf(int64_t at) const { return Sigmoid(b[at]); }
};

}  // namespace
}  // namespace gpu

absl::Status SigmoidGatingRecurrentGpu(const SigmoidGatingRecurrentParams& params, const gpu::DeviceBatch& batch,
                                       const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateSigmoidGatingRecurrent(params));
  if (params.rule.pool.layout.base_dtype() != DType::kF32) {
    return absl::UnimplementedError("SigmoidGatingRecurrent takes bases of F32 alone");
  }
  const gpu::SigmoidGates gates{params.a, params.b, params.a_log, params.dt_bias,
                                params.convention == ALogConvention::kNegativeExp};
  return gpu::ScanWithGates("sigmoid_gating_recurrent", params.rule, gates, batch, stream);
}

}  // namespace gdn
