// A task owns one value head of one sequence and walks its tokens; the base is read in place, in tiles of value columns
// whose sums stay in registers. Up to four tokens between two folds share one pass over the base: each keeps sums of
// its own, added up in the same order, so the bits are those of one token at a time. Log keys are shared by the value
// heads of a group, so tasks only read them; the new ones are copied to the log once all tasks are done. A draft folds
// into the worker's scratch and goes on from there, its later entries in the rows after the L folded ones.
// MaterializeStateCpu folds by the same code.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_rule_decode/delta_rule_decode_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/delta_rule_decode/decode_log-inl.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {
namespace {

constexpr int kMaxBlockTokens = 4;
// Asked for before the head's dot products are computed, so that the base is on its way by then.
constexpr size_t kPrefetchBytes = 4096;
// Vectors of columns in a tile times tokens of a block: there are two sums for each.
constexpr int kMaxTileSums = kManyRegisters ? 8 : 4;

// Tokens that share a pass over the base, with everything that does not depend on the column.
struct TokenBlock {
  int32_t first_entry = 0;  // log entries before the block's first token
  HeadToken tokens[kMaxBlockTokens];
  float decay[kMaxBlockTokens];                   // exp(G_t)
  float weight_k[kMaxBlockTokens][kLogCapacity];  // exp(G_t - G_i) (k_i . k_t), i < t
  float weight_q[kMaxBlockTokens][kLogCapacity];  // exp(G_t - G_i) (k_i . q_t), i <= t
};

HWY_INLINE float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t count) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<FloatTag> even = hn::Zero(d);
  hn::Vec<FloatTag> odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  for (; i + lanes <= count; i += lanes) even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Columns [column, column + kVectors * lanes) of a block: predictions, log entries and outputs.
template <int kTokens, int kVectors, class D, typename Base>
HWY_INLINE void DecodeColumns(D d, const TokenBlock& block, const LayerDims& dims, const Base* HWY_RESTRICT base,
                              float* log_u, int64_t u_stride, int64_t column) {
  using Vec = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec sum_k[kTokens][kVectors];
  Vec sum_q[kTokens][kVectors];
  SetTile(d, 0.0f, sum_k);
  SetTile(d, 0.0f, sum_q);
  for (int64_t i = 0; i < dims.key_dim; ++i) {
    const Base* row = base + i * dims.value_dim + column;
    Vec s[kVectors];
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) {
      s[n] = LoadElements(d, row + n * lanes);
    }
    HWY_UNROLL(16)
    for (int t = 0; t < kTokens; ++t) {
      const Vec k = hn::Set(d, block.tokens[t].k[i]);
      const Vec q = hn::Set(d, block.tokens[t].q[i]);
      HWY_UNROLL(16)
      for (int n = 0; n < kVectors; ++n) {
        sum_k[t][n] = hn::MulAdd(k, s[n], sum_k[t][n]);
        sum_q[t][n] = hn::MulAdd(q, s[n], sum_q[t][n]);
      }
    }
  }
  HWY_UNROLL(16)
  for (int t = 0; t < kTokens; ++t) {
    const int32_t entry = block.first_entry + t;
    const Vec decay = hn::Set(d, block.decay[t]);
    const Vec beta = hn::Set(d, block.tokens[t].beta);
    const Vec self = hn::Set(d, block.weight_q[t][entry]);
    Vec prediction[kVectors];
    Vec output[kVectors];
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) {
      prediction[n] = hn::Mul(decay, sum_k[t][n]);
      output[n] = hn::Mul(decay, sum_q[t][n]);
    }
    for (int32_t e = 0; e < entry; ++e) {
      const Vec weight_k = hn::Set(d, block.weight_k[t][e]);
      const Vec weight_q = hn::Set(d, block.weight_q[t][e]);
      HWY_UNROLL(16)
      for (int n = 0; n < kVectors; ++n) {
        const Vec u = hn::LoadU(d, log_u + e * u_stride + column + n * lanes);
        prediction[n] = hn::MulAdd(weight_k, u, prediction[n]);
        output[n] = hn::MulAdd(weight_q, u, output[n]);
      }
    }
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) {
      const Vec v = hn::LoadU(d, block.tokens[t].v + column + n * lanes);
      const Vec u = hn::Mul(beta, hn::Sub(v, prediction[n]));
      hn::StoreU(u, d, log_u + entry * u_stride + column + n * lanes);
      hn::StoreU(hn::MulAdd(self, u, output[n]), d, block.tokens[t].output + column + n * lanes);
    }
  }
}

// Covers [column, V) with the widest tiles that fit, then narrower ones.
template <int kTokens, int kVectors, typename Base>
HWY_INLINE void DecodeTiles(const TokenBlock& block, const LayerDims& dims, const Base* base, float* log_u,
                            int64_t u_stride, int64_t column) {
  const FloatTag d;
  const int64_t width = kVectors * static_cast<int64_t>(hn::Lanes(d));
  for (; column + width <= dims.value_dim; column += width) {
    DecodeColumns<kTokens, kVectors>(d, block, dims, base, log_u, u_stride, column);
  }
  if constexpr (kVectors > 1) {
    DecodeTiles<kTokens, kVectors / 2>(block, dims, base, log_u, u_stride, column);
  } else {
    for (; column < dims.value_dim; ++column) {
      DecodeColumns<kTokens, 1>(OneLaneTag(), block, dims, base, log_u, u_stride, column);
    }
  }
}

template <int kTokens, typename Base>
HWY_NOINLINE void DecodeBlock(const TokenBlock& block, const LayerDims& dims, const Base* base, float* log_u,
                              int64_t u_stride) {
  DecodeTiles<kTokens, kMaxTileSums / kTokens>(block, dims, base, log_u, u_stride, 0);
}

// Appends `count` tokens from row `token` on to the head's log, and fills in the block that computes them.
HWY_INLINE void PrepareBlock(const DeltaRuleParams& rule, int64_t token, int count, int64_t hv, HeadLog& log,
                             float* log_g, TokenBlock& block) {
  const FloatTag d;
  const LayerDims& dims = rule.pool.layout.dims();
  block.first_entry = log.entries;
  for (int b = 0; b < count; ++b, ++token) {
    const int32_t entry = log.entries++;
    const HeadToken at = HeadTokenAt(rule, token, hv);
    block.tokens[b] = at;
    log.keys[entry] = at.k;
    log_g[entry * dims.value_heads] = *at.g;
    log.sums[entry] = (entry > 0 ? log.sums[entry - 1] : 0.0) + double{*at.g};
    HWY_ALIGN float decay[PaddedFactors(1)];
    ExpSums(d, &log.sums[entry], 1, decay);
    block.decay[b] = decay[0];
    HWY_ALIGN float factors[PaddedFactors(kLogCapacity)];
    ExpDifferences(d, log.sums[entry], log.sums, entry, factors);
    for (int32_t e = 0; e < entry; ++e) {
      block.weight_k[b][e] = factors[e] * Dot(log.keys[e], at.k, dims.key_dim);
      block.weight_q[b][e] = factors[e] * Dot(log.keys[e], at.q, dims.key_dim);
    }
    block.weight_q[b][entry] = Dot(at.k, at.q, dims.key_dim);
  }
}

HWY_INLINE void PrefetchRow(const void* row, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t i = 0; i < bytes; i += kLine) hwy::Prefetch(static_cast<const char*>(row) + i);
}

// All tokens of one value head of one sequence. scratch: FoldScratchFloats of L entries, then K V for a draft.
template <typename Base>
void DecodeHead(const DeltaRuleDecodeParams& params, int32_t sequence, int64_t hv, float* scratch) {
  const DeltaRuleParams& rule = params.rule;
  const int32_t slot = rule.batch.slots[sequence];
  int64_t token = rule.batch.cu_seqlens[sequence];
  const int64_t end = rule.batch.cu_seqlens[sequence + 1];
  if (slot < 0 || token == end) return;

  const StateLayout& layout = rule.pool.layout;
  const LayerDims& dims = layout.dims();
  float* data = rule.pool.slot(slot);
  const Base* base = rule.pool.base<Base>(params.base_slots == nullptr ? slot : params.base_slots[sequence], hv);
  Base* folded = params.draft ? reinterpret_cast<Base*>(scratch + FoldScratchFloats(dims, kLogCapacity))
                              : rule.pool.base<Base>(slot, hv);
  const float* log_k = data + layout.log_k_offset() + hv / dims.group() * dims.key_dim;
  float* log_u = data + layout.log_u_offset() + hv * dims.value_dim;
  float* log_g = data + layout.log_g_offset() + hv;
  const int64_t u_stride = dims.value_features();
  const int32_t entries = params.log_lengths[sequence];

  PrefetchRow(base, std::min(kPrefetchBytes, sizeof(Base) * dims.key_dim * dims.value_dim));
  for (int32_t e = 0; e < entries; ++e) {
    PrefetchRow(log_k + e * dims.key_features(), sizeof(float) * dims.key_dim);
    PrefetchRow(log_u + e * u_stride, sizeof(float) * dims.value_dim);
  }
  HeadLog log;
  OpenLog(layout, data, hv, entries, log);
  TokenBlock block;
  while (token < end) {
    const int64_t most = std::min<int64_t>({end - token, kLogCapacity - log.entries, kMaxBlockTokens});
    const int count = most == 3 ? 2 : static_cast<int>(most);
    PrepareBlock(rule, token, count, hv, log, log_g, block);
    const auto decode = count == 4 ? DecodeBlock<4, Base> : count == 2 ? DecodeBlock<2, Base> : DecodeBlock<1, Base>;
    decode(block, dims, base, log_u, u_stride);
    token += count;
    if (log.entries == kLogCapacity) {
      FoldHead(log, dims, base, folded, scratch);
      base = folded;
      log.entries = 0;
      if (params.draft) {
        log_u += kLogCapacity * u_stride;
        log_g += int64_t{kLogCapacity} * dims.value_heads;
        log.u = log_u;
      }
    }
  }
}

void DecodeTasks(const DeltaRuleDecodeParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const int64_t heads = params.rule.pool.layout.dims().value_heads;
  WithBaseElement(params.rule.pool.layout, [&](auto element) {
    pool.ParallelFor(params.rule.batch.sequences * heads, [&](int64_t index, int worker) {
      DecodeHead<decltype(element)>(params, static_cast<int32_t>(index / heads), index % heads, scratch.piece(worker));
    });
  });
}

// One value head of one entry, from slot to slot.
template <typename Base>
void MaterializeHead(const MaterializeStateParams& params, int32_t index, int64_t hv, float* scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  Base* to = params.pool.base<Base>(params.dst[index], hv);
  if (params.src[index] < 0) {
    std::memset(to, 0, static_cast<size_t>(dims.key_dim) * dims.value_dim * sizeof(Base));
    return;
  }
  const int32_t base = params.src_bases == nullptr ? params.src[index] : params.src_bases[index];
  HeadLog log;
  OpenLog(params.pool.layout, params.pool.slot(params.src[index]), hv, params.log_lengths[index], log);
  FoldHead<Base>(log, dims, params.pool.base<Base>(base, hv), to, scratch);
}

void MaterializeTasks(const MaterializeStateParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const int64_t heads = params.pool.layout.dims().value_heads;
  WithBaseElement(params.pool.layout, [&](auto element) {
    pool.ParallelFor(params.count * heads, [&](int64_t index, int worker) {
      MaterializeHead<decltype(element)>(params, static_cast<int32_t>(index / heads), index % heads,
                                         scratch.piece(worker));
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
namespace {

// Appends the keys of the tokens since the last fold, or all of a draft; log_lengths are those after the call.
void AppendKeys(const DeltaRuleDecodeParams& params) {
  const DeltaRuleParams& rule = params.rule;
  const StateLayout& layout = rule.pool.layout;
  const int64_t row = layout.dims().key_features();
  for (int32_t i = 0; i < rule.batch.sequences; ++i) {
    const int32_t slot = rule.batch.slots[i];
    const int32_t tokens = rule.batch.length(i);
    if (slot < 0 || tokens == 0) continue;
    const int32_t entries = params.log_lengths[i];
    const int32_t added = std::min(entries, tokens);
    float* log_k = rule.pool.slot(slot) + layout.log_k_offset();
    for (int32_t a = 0; a < added; ++a) {
      const int64_t token = rule.batch.cu_seqlens[i + 1] - added + a;
      std::memcpy(log_k + (entries - added + a) * row, rule.k + token * rule.k_stride,
                  static_cast<size_t>(row) * sizeof(float));
    }
  }
}

}  // namespace

HWY_EXPORT(DecodeTasks);
HWY_EXPORT(MaterializeTasks);

absl::Status DeltaRuleDecodeCpu(const DeltaRuleDecodeParams& params, ThreadPool& pool) {
  GDN_RETURN_IF_ERROR(ValidateDeltaRuleDecode(params));
  if (params.rule.batch.tokens() == 0) return absl::OkStatus();
  ZeroPaddingRows(params.rule.batch, params.rule.pool.layout.dims().value_features(), params.rule.output);
  const LayerDims& dims = params.rule.pool.layout.dims();
  const int64_t draft_floats = params.draft ? int64_t{dims.key_dim} * dims.value_dim : 0;
  GDN_ASSIGN_OR_RETURN(
      const WorkerScratch scratch,
      WorkerScratch::Make(pool.threads(), HWY_NAMESPACE::FoldScratchFloats(dims, kLogCapacity) + draft_floats));
  HWY_DYNAMIC_DISPATCH(DecodeTasks)(params, pool, scratch);
  AdvanceLogs(params);
  AppendKeys(params);
  return absl::OkStatus();
}

absl::Status MaterializeStateCpu(const MaterializeStateParams& params, ThreadPool& pool) {
  GDN_RETURN_IF_ERROR(ValidateMaterializeState(params));
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  GDN_ASSIGN_OR_RETURN(const WorkerScratch scratch,
                       WorkerScratch::Make(pool.threads(), HWY_NAMESPACE::FoldScratchFloats(dims, layout.log_rows())));
  HWY_DYNAMIC_DISPATCH(MaterializeTasks)(params, pool, scratch);

  const size_t conv_bytes = static_cast<size_t>(layout.conv_columns() * dims.conv_channels()) * sizeof(float);
  for (int32_t i = 0; i < params.count && conv_bytes > 0; ++i) {
    float* to = params.pool.slot(params.dst[i]) + layout.conv_offset();
    if (params.src[i] < 0) {
      std::memset(to, 0, conv_bytes);
    } else if (params.src[i] != params.dst[i]) {
      std::memcpy(to, params.pool.slot(params.src[i]) + layout.conv_offset(), conv_bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
