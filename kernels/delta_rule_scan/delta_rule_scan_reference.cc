#include <cmath>
#include <vector>

#include "kernels/delta_rule_scan/delta_rule_scan.h"

namespace gdn {

void DeltaRuleScanReference(const DeltaRuleParams& params) {
  const LayerDims& dims = params.pool.layout.dims();
  const int32_t K = dims.key_dim;
  const int32_t V = dims.value_dim;
  std::vector<double> state(static_cast<size_t>(K) * V);
  std::vector<double> u(V);
  for (int32_t sequence = 0; sequence < params.batch.sequences; ++sequence) {
    const int32_t slot = params.batch.slots[sequence];
    for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
      const int32_t h = hv / dims.group();
      float* base =
          slot < 0 ? nullptr : params.pool.slot(slot) + params.pool.layout.base_offset() + int64_t{hv} * K * V;
      if (base != nullptr) state.assign(base, base + int64_t{K} * V);
      for (int64_t t = params.batch.cu_seqlens[sequence]; t < params.batch.cu_seqlens[sequence + 1]; ++t) {
        const int64_t head_row = t * dims.value_heads + hv;
        float* output = params.output + head_row * V;
        if (base == nullptr) {
          for (int32_t j = 0; j < V; ++j) output[j] = 0.0f;
          continue;
        }
        const float* q = params.q + t * params.q_stride + int64_t{h} * K;
        const float* k = params.k + t * params.k_stride + int64_t{h} * K;
        const float* v = params.v + t * params.v_stride + int64_t{hv} * V;
        const double decay = std::exp(double{params.g[head_row]});
        for (int32_t j = 0; j < V; ++j) {
          double prediction = 0.0;
          for (int32_t i = 0; i < K; ++i) {
            double& s = state[static_cast<size_t>(i) * V + j];
            s *= decay;
            prediction += s * k[i];
          }
          u[j] = params.beta[head_row] * (v[j] - prediction);
        }
        for (int32_t j = 0; j < V; ++j) {
          double sum = 0.0;
          for (int32_t i = 0; i < K; ++i) {
            double& s = state[static_cast<size_t>(i) * V + j];
            s += k[i] * u[j];
            sum += s * q[i];
          }
          output[j] = static_cast<float>(sum);
        }
      }
      if (base == nullptr) continue;
      for (int64_t i = 0; i < int64_t{K} * V; ++i) base[i] = static_cast<float>(state[i]);
    }
  }
}

}  // namespace gdn
