// Folds logs into bases on the GPU:  S <- e^{G_n} S0 + sum_e e^{G_n-G_e} k_e u_e^T, slot to slot, with the convolution
// columns. Where each key channel has a decay, e^{G_n-G_e} is a row of weights (channel_log_gpu-inl.h).
//
// Threads: as the decode kernel: 16 lanes hold kColumns columns, 16 such groups a block of one (entry, value head). A
// block reads and writes the same columns, so a slot may be folded in place. The convolution columns are split over the
// blocks.
// Resources: as the decode kernel, less than 1 KB of LDS, or 17 where decays are by channel. Bound by memory: one read
// and one write of the base.

#include "kernels/delta_rule_decode/channel_log_gpu-inl.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_decode/delta_rule_log_gpu-inl.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kMaxLogRows = kLogCapacity + kMaxDraftLimit;

struct MaterializeArgs {
  DeltaRuleArgs state;  // pool and dims; no tokens
  const int32_t* src;
  const int32_t* dst;
  const int32_t* log_lengths;
  const int32_t* src_bases;
};

struct Shared {
  LdsArray<float, kMaxLogRows> g;
  LdsArray<float, kMaxLogRows> weight;  // e^{G_n-G_e}
  LdsArray<float, 1> decay;             // e^{G_n}
};

// g[after + 1] + .. + g[entries - 1], in double and in this order; the loop is the same for all lanes.
__device__ __forceinline__ double SumAfter(Shared& sh, int entries, int after) {
  double sum = 0.0;
  for (int j = 0; j < entries; ++j) {
    const float value = sh.g[j];
    sum += j > after ? static_cast<double>(value) : 0.0;
  }
  return sum;
}

// This block's share of the convolution columns.
__device__ __forceinline__ void CopyConv(const DeltaRuleArgs& p, const float* from, float* to) {
  const int64_t blocks = int64_t{p.value_heads} * p.column_blocks;
  const int64_t block = blockIdx.x % blocks;
  const int64_t stride = blocks * kDeltaRuleThreads;
  for (int64_t i = block * kDeltaRuleThreads + threadIdx.x; i < p.at.conv_floats; i += stride) {
    to[p.at.conv + i] = from != nullptr ? from[p.at.conv + i] : 0.0f;
  }
}

template <int kElements, int kColumns, bool kExact, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads) void MaterializeStateKernel(MaterializeArgs args) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  Shared& sh = SharedMemory<Shared>();
  const DeltaRuleArgs& p = args.state;
  const BlockTask task = TaskOf(p);
  const int source = args.src[task.sequence];
  const int target = args.dst[task.sequence];
  const int entries = source < 0 ? 0 : args.log_lengths[task.sequence];
  const int base = source < 0 ? target : args.src_bases[task.sequence];
  if (source == target && base == target && entries == 0) return;
  const float* from = source < 0 ? nullptr : p.pool + source * p.at.slot_floats;
  float* to = p.pool + target * p.at.slot_floats;
  if (source != target) CopyConv(p, from, to);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kColumnLanes;
  const int column = task.column_block * kBlockColumns + thread / kColumnLanes * kColumns;
  const int count = p.value_dim - column;
  const int64_t offset = (int64_t{task.head} * p.value_dim + column) * p.key_dim;
  float s[kColumns][kElements] = {};
  if (source >= 0) {
    const float* base_slot = p.pool + base * p.at.slot_floats + p.at.base;
    LoadState<kElements, kColumns, kExact>(reinterpret_cast<const Base*>(base_slot) + offset, count, lane, p.key_dim,
                                           s);
  }
  if (entries > 0) {
    if (thread < entries) sh.g[thread] = from[p.at.log_g + int64_t{thread} * p.value_heads + task.head];
    SyncThreads();
    if (thread < entries) {
      sh.weight[thread] = expf(static_cast<float>(SumAfter(sh, entries, thread)));
    } else if (thread == kMaxLogRows) {
      sh.decay[0] = expf(static_cast<float>(SumAfter(sh, entries, -1)));
    }
    SyncThreads();
    FoldColumns<kElements, kColumns, kExact>(
        sh.decay[0], entries, lane, p.key_dim,
        [&](int e) { return from + p.at.log_k + (int64_t{e} * p.key_heads + task.key_head) * p.key_dim; },
        [&](int e) -> float { return sh.weight[e]; },
        [&](int e, float(&u)[kColumns]) {
          const int64_t row = int64_t{e} * p.value_heads + task.head;
          LoadColumns<kColumns, kExact>(from + p.at.log_u + row * p.value_dim + column, count, u);
        },
        s);
  }
  StoreState<kElements, kColumns, kExact>(reinterpret_cast<Base*>(to + p.at.base) + offset, count, lane, p.key_dim, s);
}

template <int kElements>
struct ChannelShared {
  LdsArray<float, kPieceEntries<kElements> * kLaneChannels<kElements>> weight;  // e^{G_n-G_e} of a piece's entries
  LdsArray<float, kLaneChannels<kElements>> decay;                              // e^{G_n}
  LdsArray<int32_t, 1> key_dim;  // read anew for each piece: the guards' masks would not fit the scalar registers
};

// Weights of the entries from `piece` on; e^{G_n} with the first.
template <int kElements>
__device__ __forceinline__ void WeighPiece(const DeltaRuleArgs& p, const float* log_g, int entries, int piece,
                                           ChannelShared<kElements>& sh) {
  const int64_t features = int64_t{p.value_heads} * p.key_dim;
  ForEachChannel<kElements>(static_cast<int>(threadIdx.x), [&](int channel, int part) {
    const int low = piece + part * kPartEntries<kElements>;
    const float* column = log_g + channel;
    const auto g_at = [&](int e) { return channel < p.key_dim ? column[e * features] : 0.0f; };
    const auto keep = [&](int e, float weight) {
      sh.weight[(e - piece) * kLaneChannels<kElements> + channel] = weight;
    };
    const float decay = WeighInMemory(entries, low, low + kPartEntries<kElements>, g_at, keep);
    if (low == 0) sh.decay[channel] = decay;
    if (channel == 0 && low == piece) sh.key_dim[0] = p.key_dim;
  });
}

template <int kElements, int kColumns, bool kExact, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads) void MaterializeChannelStateKernel(MaterializeArgs args) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  constexpr int kPiece = kPieceEntries<kElements>;
  auto& sh = SharedMemory<ChannelShared<kElements>>();
  const DeltaRuleArgs& p = args.state;
  const BlockTask task = TaskOf(p);
  const int source = args.src[task.sequence];
  const int target = args.dst[task.sequence];
  const int entries = source < 0 ? 0 : args.log_lengths[task.sequence];
  const int base = source < 0 ? target : args.src_bases[task.sequence];
  if (source == target && base == target && entries == 0) return;
  const float* from = source < 0 ? nullptr : p.pool + source * p.at.slot_floats;
  float* to = p.pool + target * p.at.slot_floats;
  if (source != target) CopyConv(p, from, to);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kColumnLanes;
  const int column = task.column_block * kBlockColumns + thread / kColumnLanes * kColumns;
  const int count = p.value_dim - column;
  const int64_t offset = (int64_t{task.head} * p.value_dim + column) * p.key_dim;
  float s[kColumns][kElements] = {};
  if (source >= 0) {
    const float* base_slot = p.pool + base * p.at.slot_floats + p.at.base;
    LoadState<kElements, kColumns, kExact>(reinterpret_cast<const Base*>(base_slot) + offset, count, lane, p.key_dim,
                                           s);
  }
#pragma unroll 1
  for (int piece = 0; piece < entries; piece += kPiece) {
    if (piece > 0) SyncThreads();
    WeighPiece<kElements>(p, from + p.at.log_g + int64_t{task.head} * p.key_dim, entries, piece, sh);
    SyncThreads();
    if (piece == 0) DecayChannels<kElements, kColumns>(sh.decay, lane, s);
    const int piece_entries = min(kPiece, entries - piece);
    const int key_dim = kExact || kElements <= 16 ? p.key_dim : static_cast<int32_t>(sh.key_dim[0]);
    FoldWeighted<kElements, kColumns, kExact>(
        sh.weight, piece_entries, lane, key_dim,
        [&](int e) { return from + p.at.log_k + (int64_t{piece + e} * p.key_heads + task.key_head) * p.key_dim; },
        [&](int e, float(&u)[kColumns]) {
          const int64_t row = int64_t{piece + e} * p.value_heads + task.head;
          LoadColumns<kColumns, kExact>(from + p.at.log_u + row * p.value_dim + column, count, u);
        },
        s);
  }
  StoreState<kElements, kColumns, kExact>(reinterpret_cast<Base*>(to + p.at.base) + offset, count, lane, p.key_dim, s);
}

template <int kElements, int kColumns, bool kByChannel>
absl::Status LaunchMaterialize(const MaterializeArgs& args, const MaterializeStateParams& params,
                               const Stream& stream) {
  constexpr int kBlockColumns = kDeltaRuleGroups * kColumns;
  MaterializeArgs cut = args;
  cut.state.column_blocks = static_cast<int32_t>(CeilDivide(cut.state.value_dim, kBlockColumns));
  const Grid grid{int64_t{params.count} * cut.state.value_heads * cut.state.column_blocks};
  const bool exact = ExactColumns(params.pool, kElements, kBlockColumns);
  return WithBaseElement(params.pool.layout, [&](auto element) {
    using Base = decltype(element);
    const auto launch = [&](auto kernel) {
      return Launch("materialize_state", kernel, grid, kDeltaRuleThreads, stream, cut);
    };
    if constexpr (kByChannel) {
      if constexpr (kElements <= 16) {
        if (exact) return launch(MaterializeChannelStateKernel<kElements, kColumns, true, Base>);
      }
      return launch(MaterializeChannelStateKernel<kElements, kColumns, false, Base>);
    } else {
      return launch(exact ? MaterializeStateKernel<kElements, kColumns, true, Base>
                          : MaterializeStateKernel<kElements, kColumns, false, Base>);
    }
  });
}

}  // namespace
}  // namespace gpu

absl::Status MaterializeStateGpu(const MaterializeStateParams& params, const gpu::DeviceFold& fold,
                                 const gpu::Stream& stream) {
  const LayerDims& dims = params.pool.layout.dims();
  DeltaRuleParams state;
  state.pool = params.pool;
  const gpu::MaterializeArgs args{gpu::MakeDeltaRuleArgs(state, {}, gpu::kDeltaRuleGroups), fold.src, fold.dst,
                                  fold.log_lengths, fold.src_bases};
  if (dims.decays_by_channel()) {
    return gpu::WithElements<kMaxHeadDim / gpu::kColumnLanes>(dims.key_dim, [&](auto elements) {
      constexpr int kColumns = elements() <= 8 ? 4 : elements() <= 16 ? 2 : 1;
      return gpu::LaunchMaterialize<elements(), kColumns, true>(args, params, stream);
    });
  }
  const int64_t heads = int64_t{params.count} * dims.value_heads;
  return gpu::WithElements<kMaxHeadDim / gpu::kColumnLanes>(dims.key_dim, [&](auto elements) {
    constexpr int kMost = gpu::kMostColumns<elements()>;
    return gpu::WithColumns<kMost>(gpu::ChooseColumns(kMost, heads, dims.value_dim, stream), [&](auto columns) {
      return gpu::LaunchMaterialize<elements(), columns(), false>(args, params, stream);
    });
  });
}

}  // namespace gdn
