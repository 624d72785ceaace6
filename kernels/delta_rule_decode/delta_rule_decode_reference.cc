#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/delta_rule_decode/delta_rule_decode.h"

namespace gdn {
namespace {

// Where the parts of one value head lie in a slot.
struct HeadView {
  float* base;   // [K, V]
  float* log_k;  // entry i at + i * k_stride, [K]
  float* log_u;  // entry i at + i * u_stride, [V]
  float* log_g;  // entry i at + i * g_stride
  int64_t k_stride;
  int64_t u_stride;
  int64_t g_stride;
};

HeadView ViewHead(const StatePoolView& pool, int32_t slot, int32_t hv) {
  const StateLayout& layout = pool.layout;
  const LayerDims& dims = layout.dims();
  float* data = pool.slot(slot);
  return {.base = data + layout.base_offset() + int64_t{hv} * dims.key_dim * dims.value_dim,
          .log_k = data + layout.log_k_offset() + int64_t{hv / dims.group()} * dims.key_dim,
          .log_u = data + layout.log_u_offset() + int64_t{hv} * dims.value_dim,
          .log_g = data + layout.log_g_offset() + hv,
          .k_stride = dims.key_features(),
          .u_stride = dims.value_features(),
          .g_stride = dims.value_heads};
}

// `base` <- the head's state after `entries` log entries.
void Fold(const HeadView& head, const LayerDims& dims, int32_t entries, float* base) {
  double total = 0.0;
  for (int32_t e = 0; e < entries; ++e) total += head.log_g[e * head.g_stride];
  for (int32_t i = 0; i < dims.key_dim; ++i) {
    for (int32_t j = 0; j < dims.value_dim; ++j) {
      const int64_t at = int64_t{i} * dims.value_dim + j;
      double sum = std::exp(total) * head.base[at];
      double reached = 0.0;
      for (int32_t e = 0; e < entries; ++e) {
        reached += head.log_g[e * head.g_stride];
        sum += std::exp(total - reached) * head.log_k[e * head.k_stride + i] * head.log_u[e * head.u_stride + j];
      }
      base[at] = static_cast<float>(sum);
    }
  }
}

// S0^T x decayed to the newest of `entries` tokens, plus what the log holds of them.
std::vector<double> Read(const HeadView& head, const LayerDims& dims, int32_t entries, double total, const float* x) {
  std::vector<double> sum(dims.value_dim, 0.0);
  for (int32_t i = 0; i < dims.key_dim; ++i) {
    for (int32_t j = 0; j < dims.value_dim; ++j) sum[j] += double{head.base[int64_t{i} * dims.value_dim + j]} * x[i];
  }
  for (double& value : sum) value *= std::exp(total);
  double reached = 0.0;
  for (int32_t e = 0; e < entries; ++e) {
    reached += head.log_g[e * head.g_stride];
    double dot = 0.0;
    for (int32_t i = 0; i < dims.key_dim; ++i) dot += double{head.log_k[e * head.k_stride + i]} * x[i];
    for (int32_t j = 0; j < dims.value_dim; ++j) {
      sum[j] += std::exp(total - reached) * dot * head.log_u[e * head.u_stride + j];
    }
  }
  return sum;
}

}  // namespace

void DeltaRuleDecodeReference(const DeltaRuleDecodeParams& params) {
  const DeltaRuleParams& rule = params.rule;
  const LayerDims& dims = rule.pool.layout.dims();
  for (int32_t sequence = 0; sequence < rule.batch.sequences; ++sequence) {
    const int32_t slot = rule.batch.slots[sequence];
    for (int64_t t = rule.batch.cu_seqlens[sequence]; t < rule.batch.cu_seqlens[sequence + 1]; ++t) {
      float* output = rule.output + t * dims.value_features();
      if (slot < 0) {
        std::fill(output, output + dims.value_features(), 0.0f);
        continue;
      }
      int32_t& entries = params.log_lengths[sequence];
      for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
        const HeadView head = ViewHead(rule.pool, slot, hv);
        const int64_t key_offset = int64_t{hv / dims.group()} * dims.key_dim;
        const float* q = rule.q + t * rule.q_stride + key_offset;
        const float* k = rule.k + t * rule.k_stride + key_offset;
        const float* v = rule.v + t * rule.v_stride + int64_t{hv} * dims.value_dim;
        const int64_t head_row = t * dims.value_heads + hv;
        std::copy(k, k + dims.key_dim, head.log_k + entries * head.k_stride);
        head.log_g[entries * head.g_stride] = rule.g[head_row];
        double total = 0.0;
        for (int32_t e = 0; e <= entries; ++e) total += head.log_g[e * head.g_stride];
        const std::vector<double> prediction = Read(head, dims, entries, total, k);
        float* u = head.log_u + entries * head.u_stride;
        for (int32_t j = 0; j < dims.value_dim; ++j) {
          u[j] = static_cast<float>(rule.beta[head_row] * (v[j] - prediction[j]));
        }
        const std::vector<double> o = Read(head, dims, entries + 1, total, q);
        for (int32_t j = 0; j < dims.value_dim; ++j)
          output[int64_t{hv} * dims.value_dim + j] = static_cast<float>(o[j]);
      }
      if (++entries < kLogCapacity) continue;
      for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
        const HeadView head = ViewHead(rule.pool, slot, hv);
        Fold(head, dims, entries, head.base);
      }
      entries = 0;
    }
  }
}

void MaterializeStateReference(const MaterializeStateParams& params) {
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  const int64_t conv_floats = layout.conv_columns() * dims.conv_channels();
  for (int32_t i = 0; i < params.count; ++i) {
    float* dst = params.pool.slot(params.dst[i]);
    if (params.src[i] < 0) {
      std::fill_n(dst + layout.base_offset(), dims.state_elements(), 0.0f);
      std::fill_n(dst + layout.conv_offset(), conv_floats, 0.0f);
      continue;
    }
    for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
      const HeadView from = ViewHead(params.pool, params.src[i], hv);
      Fold(from, dims, params.log_lengths[i], ViewHead(params.pool, params.dst[i], hv).base);
    }
    const float* src = params.pool.slot(params.src[i]);
    if (src != dst) std::copy_n(src + layout.conv_offset(), conv_floats, dst + layout.conv_offset());
  }
}

}  // namespace gdn
