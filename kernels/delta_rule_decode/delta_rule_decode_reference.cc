#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/delta_rule_decode/delta_rule_decode.h"

namespace gdn {
namespace {

// Where the parts of one value head lie.
struct HeadView {
  const float* base;  // [K, V]
  float* log_k;       // entry i at + i * k_stride, [K]
  float* log_u;       // entry i at + i * u_stride, [V]
  float* log_g;       // entry i at + i * g_stride, [decay_dim]
  int64_t k_stride;
  int64_t u_stride;
  int64_t g_stride;
};

// Head `hv` of the `bases` [HV, K, V], with the log of `slot` from row `first` on.
HeadView ViewHead(const StatePoolView& pool, const float* bases, int32_t slot, int32_t first, int32_t hv) {
  const StateLayout& layout = pool.layout;
  const LayerDims& dims = layout.dims();
  float* data = pool.slot(slot);
  const int64_t key_head = hv / dims.group();
  return {.base = bases + int64_t{hv} * dims.key_dim * dims.value_dim,
          .log_k = data + layout.log_k_offset() + first * dims.key_features() + key_head * dims.key_dim,
          .log_u = data + layout.log_u_offset() + first * dims.value_features() + int64_t{hv} * dims.value_dim,
          .log_g = data + layout.log_g_offset() + first * dims.decay_features() + int64_t{hv} * dims.decay_dim(),
          .k_stride = dims.key_features(),
          .u_stride = dims.value_features(),
          .g_stride = dims.decay_features()};
}

// What is left, in channel `i` after `entries` tokens, of what was there before token `first` had decayed it.
double DecayFrom(const HeadView& head, const LayerDims& dims, int32_t first, int32_t entries, int32_t i) {
  double sum = 0.0;  // of these alone: a difference of sums would lose what follows a very strong decay
  for (int32_t e = first; e < entries; ++e) sum += head.log_g[e * head.g_stride + (dims.decays_by_channel() ? i : 0)];
  return std::exp(sum);
}

// `base` <- the head's state after `entries` log entries.
void Fold(const HeadView& head, const LayerDims& dims, int32_t entries, float* base) {
  for (int32_t i = 0; i < dims.key_dim; ++i) {
    std::vector<double> decays;  // after each entry
    for (int32_t e = 0; e < entries; ++e) decays.push_back(DecayFrom(head, dims, e + 1, entries, i));
    const double decay = DecayFrom(head, dims, 0, entries, i);
    for (int32_t j = 0; j < dims.value_dim; ++j) {
      const int64_t at = int64_t{i} * dims.value_dim + j;
      double sum = decay * head.base[at];
      for (int32_t e = 0; e < entries; ++e) {
        sum += decays[e] * head.log_k[e * head.k_stride + i] * head.log_u[e * head.u_stride + j];
      }
      base[at] = static_cast<float>(sum);
    }
  }
}

// S0^T x decayed by the log's first `decayed` tokens, plus what the first `entries` of them wrote.
std::vector<double> Read(const HeadView& head, const LayerDims& dims, int32_t entries, int32_t decayed,
                         const float* x) {
  std::vector<double> sum(dims.value_dim, 0.0);
  for (int32_t i = 0; i < dims.key_dim; ++i) {
    const double decay = DecayFrom(head, dims, 0, decayed, i);
    for (int32_t j = 0; j < dims.value_dim; ++j) {
      sum[j] += decay * head.base[int64_t{i} * dims.value_dim + j] * x[i];
    }
  }
  for (int32_t e = 0; e < entries; ++e) {
    double dot = 0.0;
    for (int32_t i = 0; i < dims.key_dim; ++i) {
      dot += DecayFrom(head, dims, e + 1, decayed, i) * head.log_k[e * head.k_stride + i] * x[i];
    }
    for (int32_t j = 0; j < dims.value_dim; ++j) sum[j] += dot * head.log_u[e * head.u_stride + j];
  }
  return sum;
}

// Appends row `t` of the call to the head's log as entry `entries`, and fills in its output.
void DecodeToken(const DeltaRuleParams& rule, const HeadView& head, int32_t hv, int64_t t, int32_t entries) {
  const LayerDims& dims = rule.pool.layout.dims();
  const HeadToken token = HeadTokenAt(rule, t, hv);
  std::copy_n(token.k, dims.key_dim, head.log_k + entries * head.k_stride);
  std::copy_n(token.g, dims.decay_dim(), head.log_g + entries * head.g_stride);
  const std::vector<double> prediction = Read(head, dims, entries, entries + 1, token.k);
  float* u = head.log_u + entries * head.u_stride;
  for (int32_t j = 0; j < dims.value_dim; ++j) u[j] = static_cast<float>(token.beta * (token.v[j] - prediction[j]));
  const std::vector<double> o = Read(head, dims, entries + 1, entries + 1, token.q);
  for (int32_t j = 0; j < dims.value_dim; ++j) token.output[j] = static_cast<float>(o[j]);
}

void DecodeSequence(const DeltaRuleDecodeParams& params, int32_t sequence) {
  const DeltaRuleParams& rule = params.rule;
  const LayerDims& dims = rule.pool.layout.dims();
  const int32_t slot = rule.batch.slots[sequence];
  std::vector<float> bases(dims.state_elements());
  ReadBase(rule.pool, params.base_slots == nullptr ? slot : params.base_slots[sequence], bases.data());
  int32_t first = 0;  // row of the log's first entry
  int32_t entries = params.log_lengths[sequence];
  for (int64_t t = rule.batch.cu_seqlens[sequence]; t < rule.batch.cu_seqlens[sequence + 1]; ++t) {
    for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
      DecodeToken(rule, ViewHead(rule.pool, bases.data(), slot, first, hv), hv, t, entries);
    }
    if (++entries < kLogCapacity) continue;
    for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
      Fold(ViewHead(rule.pool, bases.data(), slot, first, hv), dims, entries,
           bases.data() + int64_t{hv} * dims.key_dim * dims.value_dim);
    }
    RoundElements(rule.pool.layout.base_dtype(), bases.data(), dims.state_elements());
    if (!params.draft) WriteBase(rule.pool, slot, bases.data());
    entries = 0;
    if (params.draft) first += kLogCapacity;
  }
  params.log_lengths[sequence] = first + entries;
}

}  // namespace

void DeltaRuleDecodeReference(const DeltaRuleDecodeParams& params) {
  const PackedBatch& batch = params.rule.batch;
  ZeroPaddingRows(batch, params.rule.pool.layout.dims().value_features(), params.rule.output);
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] >= 0) DecodeSequence(params, i);
  }
}

void MaterializeStateReference(const MaterializeStateParams& params) {
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  const int64_t conv_floats = layout.conv_columns() * dims.conv_channels();
  std::vector<float> bases(dims.state_elements());
  for (int32_t i = 0; i < params.count; ++i) {
    float* dst = params.pool.slot(params.dst[i]);
    if (params.src[i] < 0) {
      std::fill(dst + layout.base_offset(), dst + layout.log_k_offset(), 0.0f);
      std::fill_n(dst + layout.conv_offset(), conv_floats, 0.0f);
      continue;
    }
    ReadBase(params.pool, params.src_bases == nullptr ? params.src[i] : params.src_bases[i], bases.data());
    for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
      Fold(ViewHead(params.pool, bases.data(), params.src[i], /*first=*/0, hv), dims, params.log_lengths[i],
           bases.data() + int64_t{hv} * dims.key_dim * dims.value_dim);
    }
    WriteBase(params.pool, params.dst[i], bases.data());
    const float* src = params.pool.slot(params.src[i]);
    if (src != dst) std::copy_n(src + layout.conv_offset(), conv_floats, dst + layout.conv_offset());
  }
}

}  // namespace gdn
