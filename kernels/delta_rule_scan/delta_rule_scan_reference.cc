#include <cmath>
#include <vector>

#include "kernels/delta_rule_scan/delta_rule_scan.h"

namespace gdn {

void DeltaRuleScanReference(const DeltaRuleParams& params) {
  const LayerDims& dims = params.pool.layout.dims();
  const int32_t K = dims.key_dim;
  const int32_t V = dims.value_dim;
  const DType dtype = params.pool.layout.base_dtype();
  std::vector<float> bases(dims.state_elements());
  std::vector<float> rounded(static_cast<size_t>(K) * V);
  std::vector<double> state(static_cast<size_t>(K) * V);
  std::vector<double> u(V);
  std::vector<double> decay(K);
  ZeroPaddingRows(params.batch, dims.value_features(), params.output);
  for (int32_t sequence = 0; sequence < params.batch.sequences; ++sequence) {
    const int32_t slot = params.batch.slots[sequence];
    if (slot < 0) continue;
    ReadBase(params.pool, slot, bases.data());
    for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
      float* base = bases.data() + int64_t{hv} * K * V;
      state.assign(base, base + int64_t{K} * V);
      for (int64_t t = params.batch.cu_seqlens[sequence]; t < params.batch.cu_seqlens[sequence + 1]; ++t) {
        const HeadToken token = HeadTokenAt(params, t, hv);
        for (int32_t i = 0; i < K; ++i) decay[i] = std::exp(double{token.g[dims.decays_by_channel() ? i : 0]});
        for (int32_t j = 0; j < V; ++j) {
          double prediction = 0.0;
          for (int32_t i = 0; i < K; ++i) {
            double& s = state[static_cast<size_t>(i) * V + j];
            s *= decay[i];
            prediction += s * token.k[i];
          }
          u[j] = token.beta * (token.v[j] - prediction);
        }
        for (int32_t j = 0; j < V; ++j) {
          double sum = 0.0;
          for (int32_t i = 0; i < K; ++i) {
            double& s = state[static_cast<size_t>(i) * V + j];
            s += token.k[i] * u[j];
            sum += s * token.q[i];
          }
          token.output[j] = static_cast<float>(sum);
        }
        if (dtype != DType::kF32 && (t + 1 - params.batch.cu_seqlens[sequence]) % kBaseRoundTokens == 0) {
          rounded.assign(state.begin(), state.end());
          RoundElements(dtype, rounded.data(), int64_t{K} * V);
          state.assign(rounded.begin(), rounded.end());
        }
      }
      for (int64_t i = 0; i < int64_t{K} * V; ++i) base[i] = static_cast<float>(state[i]);
    }
    WriteBase(params.pool, slot, bases.data());
  }
}

}  // namespace gdn
