// A task owns one value head of one sequence and walks its tokens; the base is read in place, in tiles of value columns
// whose sums stay in registers. Up to four tokens between two folds share one pass over the base: each keeps sums of
// its own, added up in the same order, so the bits are those of one token at a time. Log keys are shared by the value
// heads of a group, so tasks only read them; the new ones are copied to the log once all tasks are done. A draft folds
// into the worker's scratch and goes on from there, its later entries in the rows after the L folded ones.
// MaterializeStateCpu folds by the same code. Log is HeadLog or ChannelLog, by how many decays a head has.
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
#include "kernels/delta_rule_decode/channel_log-inl.h"
#include "kernels/delta_rule_decode/decode_log-inl.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
namespace {

// Asked for before the head's dot products are computed, so that the base is on its way by then.
constexpr size_t kPrefetchBytes = 4096;

HWY_INLINE void PrefetchRow(const void* row, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t i = 0; i < bytes; i += kLine) hwy::Prefetch(static_cast<const char*>(row) + i);
}

// All tokens of one value head of one sequence. scratch: Log::ScratchFloats of L entries, then K V for a draft.
template <typename Log, typename Base>
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
  Base* folded = params.draft ? reinterpret_cast<Base*>(scratch + Log::ScratchFloats(dims, kLogCapacity))
                              : rule.pool.base<Base>(slot, hv);
  const float* log_k = data + layout.log_k_offset() + hv / dims.group() * dims.key_dim;
  float* log_u = data + layout.log_u_offset() + hv * dims.value_dim;
  float* log_g = data + layout.log_g_offset() + hv * dims.decay_dim();
  const int64_t u_stride = dims.value_features();
  const int32_t entries = params.log_lengths[sequence];

  const size_t base_bytes = sizeof(Base) * dims.key_dim * dims.value_dim;
  PrefetchRow(base, std::min(kPrefetchBytes, base_bytes));
  for (int32_t e = 0; e < entries; ++e) {
    PrefetchRow(log_k + e * dims.key_features(), sizeof(float) * dims.key_dim);
    PrefetchRow(log_u + e * u_stride, sizeof(float) * dims.value_dim);
    if (dims.decays_by_channel()) PrefetchRow(log_g + e * dims.decay_features(), sizeof(float) * dims.key_dim);
  }
  Log log;
  OpenLog(layout, data, hv, entries, log);
  if (base_bytes > kPrefetchBytes) {
    log.Expect(reinterpret_cast<const char*>(base) + kPrefetchBytes, reinterpret_cast<const char*>(base) + base_bytes);
  }
  TokenBlock block;
  while (token < end) {
    const int64_t most = std::min<int64_t>({end - token, kLogCapacity - log.entries, kMaxBlockTokens});
    const int count = most == 3 ? 2 : static_cast<int>(most);
    PrepareBlock(rule, token, count, hv, log, log_g, scratch, block);
    const auto decode = count == 4 ? DecodeBlock<4, Base> : count == 2 ? DecodeBlock<2, Base> : DecodeBlock<1, Base>;
    decode(block, dims, base, log_u, u_stride);
    token += count;
    if (log.entries == kLogCapacity) {
      FoldHead(log, dims, base, folded, scratch);
      base = folded;
      log.entries = 0;
      if (params.draft) {
        log_u += kLogCapacity * u_stride;
        log_g += kLogCapacity * dims.decay_features();
        log.MoveTo(log_u, log_g);
      }
    }
  }
}

// function(Log()), the kind that the dims need.
template <typename Function>
void WithLogKind(const LayerDims& dims, const Function& function) {
  if (dims.decays_by_channel()) {
    function(ChannelLog());
  } else {
    function(HeadLog());
  }
}

void DecodeTasks(const DeltaRuleDecodeParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const LayerDims& dims = params.rule.pool.layout.dims();
  const int64_t heads = dims.value_heads;
  WithLogKind(dims, [&](auto log) {
    WithBaseElement(params.rule.pool.layout, [&](auto element) {
      pool.ParallelFor(params.rule.batch.sequences * heads, [&](int64_t index, int worker) {
        DecodeHead<decltype(log), decltype(element)>(params, static_cast<int32_t>(index / heads), index % heads,
                                                     scratch.piece(worker));
      });
    });
  });
}

// One value head of one entry, from slot to slot.
template <typename Log, typename Base>
void MaterializeHead(const MaterializeStateParams& params, int32_t index, int64_t hv, float* scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  Base* to = params.pool.base<Base>(params.dst[index], hv);
  if (params.src[index] < 0) {
    std::memset(to, 0, static_cast<size_t>(dims.key_dim) * dims.value_dim * sizeof(Base));
    return;
  }
  const int32_t base = params.src_bases == nullptr ? params.src[index] : params.src_bases[index];
  Log log;
  OpenLog(params.pool.layout, params.pool.slot(params.src[index]), hv, params.log_lengths[index], log);
  FoldHead<Base>(log, dims, params.pool.base<Base>(base, hv), to, scratch);
}

void MaterializeTasks(const MaterializeStateParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t heads = dims.value_heads;
  WithLogKind(dims, [&](auto log) {
    WithBaseElement(params.pool.layout, [&](auto element) {
      pool.ParallelFor(params.count * heads, [&](int64_t index, int worker) {
        MaterializeHead<decltype(log), decltype(element)>(params, static_cast<int32_t>(index / heads), index % heads,
                                                          scratch.piece(worker));
      });
    });
  });
}

}  // namespace
}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
namespace {

int64_t ScratchFloats(const LayerDims& dims, int64_t entries) {
  return dims.decays_by_channel() ? HWY_NAMESPACE::ChannelLog::ScratchFloats(dims, entries)
                                  : HWY_NAMESPACE::HeadLog::ScratchFloats(dims, entries);
}

// The scratch of one worker, in floats.
int64_t PieceFloats(const DeltaRuleDecodeParams& params) {
  const LayerDims& dims = params.rule.pool.layout.dims();
  const int64_t draft_floats = params.draft ? int64_t{dims.key_dim} * dims.value_dim : 0;
  return ScratchFloats(dims, kLogCapacity) + draft_floats;
}
int64_t PieceFloats(const MaterializeStateParams& params) {
  return ScratchFloats(params.pool.layout.dims(), params.pool.layout.log_rows());
}

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

int64_t ScratchFloats(const DeltaRuleDecodeParams& params, int threads) {
  return WorkerScratch::Floats(threads, PieceFloats(params));
}
int64_t ScratchFloats(const MaterializeStateParams& params, int threads) {
  return WorkerScratch::Floats(threads, PieceFloats(params));
}

absl::Status DeltaRuleDecodeCpu(const DeltaRuleDecodeParams& params, ThreadPool& pool) {
  if (params.rule.batch.tokens() == 0) return absl::OkStatus();
  ZeroPaddingRows(params.rule.batch, params.rule.pool.layout.dims().value_features(), params.rule.output);
  GDN_ASSIGN_OR_RETURN(const WorkerScratch scratch, WorkerScratch::Make(pool.threads(), PieceFloats(params)));
  HWY_DYNAMIC_DISPATCH(DecodeTasks)(params, pool, scratch);
  AdvanceLogs(params);
  AppendKeys(params);
  return absl::OkStatus();
}

absl::Status MaterializeStateCpu(const MaterializeStateParams& params, ThreadPool& pool) {
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  GDN_ASSIGN_OR_RETURN(const WorkerScratch scratch, WorkerScratch::Make(pool.threads(), PieceFloats(params)));
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
