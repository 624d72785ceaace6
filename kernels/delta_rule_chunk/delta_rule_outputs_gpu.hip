// The outputs of all chunks of a span at once, for waves of 32 (delta_rule_split_gpu.hip):
//   O = e^G Q S + P U
// or, where decays are by channel, (e^G Q) S + P U with e^G Q as it was prepared;
// from the chunks' incoming S in the workspace, and U where O goes.
//
// Threads: a block of 128 is a chunk's 32 tokens by 128 columns of one value head, a quarter (32 threads) 32 of them,
// in tiles of 8 tokens x 4 columns a lane. Bound by LDS: 1.5 bytes an FMA.

#include "kernels/delta_rule_chunk/delta_rule_split_gpu-inl.h"

namespace gdn::gpu::split {
namespace {

constexpr int kBlockColumns = kQuarters * kSlice;

template <int kKeys>
struct OutputsShared {
  LdsArray<float, kC*(kKeys + 4)> q;
  LdsArray<float, kQuarters * kTile> b;  // a quarter's: 32 rows of S at a time, then U
  LdsArray<float, kC * kStride> p;
  LdsArray<float, kC> grown;
};

template <int kKeys, bool kExact, bool kByChannel>
__global__ __launch_bounds__(kThreads) void DeltaRuleOutputsKernel(ChunkArgs args, Span span) {
  using Rows = OutputsShared<kKeys>;
  Rows& sh = SharedMemory<Rows>();
  const DeltaRuleArgs& p = args.rule;
  const uint32_t parts = static_cast<uint32_t>((p.value_dim + kBlockColumns - 1) / kBlockColumns);
  uint32_t rest = blockIdx.x;
  const int part = static_cast<int>(rest % parts);
  rest /= parts;
  const int head = static_cast<int>(rest % static_cast<uint32_t>(p.value_heads));
  rest /= static_cast<uint32_t>(p.value_heads);
  const int chunk = static_cast<int>(rest % static_cast<uint32_t>(span.chunks));
  const int in_span = static_cast<int>(rest / static_cast<uint32_t>(span.chunks));
  const int sequence = span.sequence + in_span;
  const int64_t first = p.cu_seqlens[sequence];
  const int64_t start = first + int64_t{span.chunk + chunk} * kC;
  const int rows = static_cast<int>(min(int64_t{kC}, p.cu_seqlens[sequence + 1] - start));
  if (rows <= 0) return;
  const Place place = ThisPlace();
  const int thread = static_cast<int>(threadIdx.x);
  const int slice = part * kBlockColumns + place.quarter * kSlice;
  const int column = slice + place.column;
  const bool works = slice < p.value_dim;  // the same for all of a quarter
  float* o_rows = p.output + (start * p.value_heads + head) * p.value_dim;
  const int64_t o_stride = int64_t{p.value_heads} * p.value_dim;
  if (p.slots[sequence] < 0) {
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int row = place.row_group + kRowGroups * r;
      if (works && row < rows) {
        StoreGuarded<kExact>(o_rows + row * o_stride, column, p.value_dim, {0.0f, 0.0f, 0.0f, 0.0f});
      }
    }
    return;
  }
  const float* prepared = PreparedOf<kKeys, kByChannel>(args, span, first, in_span, chunk, head);
  const float* state = StateOf<kKeys>(span, p, in_span, chunk, head);
  RowMover<kKeys, kExact || kByChannel> mover;
  if constexpr (kByChannel) {
    mover.Fetch(prepared + ChannelWorkspace::QGrown(kKeys), kKeys, kC, kKeys);
  } else {
    mover.Fetch(p.q + start * p.q_stride + int64_t{head / p.group} * p.key_dim, p.q_stride, rows, p.key_dim);
  }
  SquareMover p_mover;
  p_mover.Fetch(prepared + ChunkWorkspace::kP);
  mover.Store(sh.q);
  p_mover.Store(sh.p);
  if (!kByChannel && thread < kC) sh.grown[thread] = prepared[ChunkWorkspace::kGrown + thread];

  Vec4 ahead[kTileRows];
  const auto fetch_state = [&](int key) {
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      ahead[r] = Vec4{0.0f, 0.0f, 0.0f, 0.0f};
      if (works) ahead[r] = Load4(state + int64_t{key + place.row_group + kRowGroups * r} * span.value_slots + column);
    }
  };
  const auto store_ahead = [&] {
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      sh.b.Store4(place.quarter * kTile + (place.row_group + kRowGroups * r) * kSlice + place.column, ahead[r]);
    }
  };
  fetch_state(0);
  SyncThreads();
  float o[kTileRows][4] = {};
#pragma unroll 1
  for (int key = 0; key < kKeys; key += kC) {
    store_ahead();
    if (key + kC < kKeys) {
      fetch_state(key + kC);
    } else {
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        const int row = place.row_group + kRowGroups * r;
        ahead[r] = Vec4{0.0f, 0.0f, 0.0f, 0.0f};
        if (works && row < rows) ahead[r] = LoadGuarded<kExact>(o_rows + row * o_stride, column, p.value_dim);
      }
    }
    WaveBarrier();
    MultiplyTile<kC>(sh.q, key, kKeys + 4, sh.b, place.quarter * kTile, place, o);
    WaveBarrier();
  }
  store_ahead();
  WaveBarrier();
  if constexpr (!kByChannel) {
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const float grown = sh.grown[place.row_group + kRowGroups * r];
#pragma unroll
      for (int c = 0; c < 4; ++c) o[r][c] *= grown;
    }
  }
  MultiplyTile<kC>(sh.p, 0, kStride, sh.b, place.quarter * kTile, place, o);
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const int row = place.row_group + kRowGroups * r;
    if (works && row < rows) {
      StoreGuarded<kExact>(o_rows + row * o_stride, column, p.value_dim, {o[r][0], o[r][1], o[r][2], o[r][3]});
    }
  }
}

}  // namespace

absl::Status LaunchOutputs(const ChunkArgs& args, const Span& span, bool by_channel, bool exact, const Stream& stream) {
  const int64_t parts = CeilDivide(args.rule.value_dim, kBlockColumns);
  const int64_t blocks = int64_t{span.sequences} * args.rule.value_heads * span.chunks * parts;
  return WithSplitKernels(args.rule.key_dim, by_channel, [&](auto keys, auto channel) {
    const auto kernel =
        exact ? DeltaRuleOutputsKernel<keys(), true, channel()> : DeltaRuleOutputsKernel<keys(), false, channel()>;
    return Launch("delta_rule_outputs", kernel, {blocks}, kThreads, stream, args, span);
  });
}

}  // namespace gdn::gpu::split
