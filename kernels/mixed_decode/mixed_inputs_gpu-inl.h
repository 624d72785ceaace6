// Device code: what the two kernels of a decode between the projections share: the arguments, the convolution of a
// head's inputs, and the gated norm.
//
// Thread safety: pure functions. For mixed_decode*_gpu.hip only.
//
//   ShareInputs<kWave, kElements>(args.mixer, call, /*q_at=*/0, /*k_at=*/kSlots, sh.rows, sh.v);
//   SyncThreads();
//   ...
//   SyncThreads();
//   NormOutput<kWave>(args, call, sh.output);
#pragma once

#include <cstdint>

#include "kernels/causal_conv1d/conv_channels-inl.h"
#include "kernels/delta_rule_decode/delta_rule_decode_gpu-inl.h"
#include "kernels/gated_rmsnorm/gated_norm-inl.h"
#include "kernels/mixed_decode/mixed_decode.h"
#include "kernels/mixer_input/mixer_records_gpu-inl.h"

namespace gdn::gpu {

inline constexpr int kMostValues = 256;  // V
inline constexpr int kMixedColumns = 4;  // value columns a group of lanes has at a time

struct MixedDecodeArgs {
  MixerArgs mixer;
  DecodeArgs decode;  // of one block of columns
  GatedRmsNormParams norm;
};

// Launches the kernel for decays by channel. The params must be taken (TakesMixedDecodeGpu).
absl::Status LaunchMixedChannelDecode(const MixedDecodeArgs& args, const StateLayout& layout, const DeviceBatch& batch,
                                      const Stream& stream);

// Returns a number of all lanes in a vector register. What follows from it then takes no scalar ones, which are few.
__device__ __forceinline__ int32_t InVectors(int32_t x) {
  return static_cast<int32_t>(NotHoisted(static_cast<uint32_t>(x)));
}

// Convolves four channels of the task's token, from `channel` on, and returns the outputs. If `keeps`, stores the
// token's inputs in the ring. `x` is the channels' place in a row of the inputs.
__device__ __forceinline__ Vec4 ConvolveFour(const MixerArgs& p, int32_t sequence, int32_t x, int32_t channel,
                                             bool keeps) {
  ConvWindow4 window;
  window.LoadTaps(p.weight + int64_t{channel} * 4);
  const ConvSequence s = SequenceAt(p.geometry, sequence, p.x + x, p.x_stride, channel);
  const Vec4 now = Load4(s.x);
  window.LoadHistory(s, 0);
  if (keeps) Store4(s.ring + int64_t{s.first} * s.channels, now);
  return window.Step(now);
}

// Puts the token's q, k and v of the task's heads into LDS: k from rows[k_at] on, q from rows[q_at] on, zero past K.
template <int kWave, int kElements, typename Rows, typename Values>
__device__ __forceinline__ void ShareInputs(const MixerArgs& p, const DecodeCall& call, int q_at, int k_at, Rows& rows,
                                            Values& v) {
  constexpr int kSlots = kColumnLanes * kElements;
  const int thread = static_cast<int>(threadIdx.x);
  BlockTask task = call.task;
  task.head = InVectors(task.head);
  task.key_head = InVectors(task.key_head);
  const int32_t member = task.head - task.key_head * p.at.group;  // of the key head's value heads
  if (thread < 2 * kHeadLanes) {
    const bool is_query = thread < kHeadLanes;
    const int32_t e = 4 * (thread % kHeadLanes);
    Vec4 y{0.0f, 0.0f, 0.0f, 0.0f};
    if (e < p.at.key_dim) {
      const int32_t x = is_query ? p.at.QueryOf(task.key_head) : p.at.KeyOf(task.key_head);
      const int32_t channel = (is_query ? 0 : p.at.KeyFeatures()) + task.key_head * p.at.key_dim + e;
      y = ConvolveFour(p, task.sequence, x + e, channel, member == 0);
    }
    const float factor = L2NormFactor(HeadSum<kWave>(AddSquares(0.0, y)), is_query ? p.scale : 1.0f);
    if (e < kSlots) rows.Store4((is_query ? q_at : k_at) + e, Scale4(y, factor));
    return;
  }
  const int32_t e = 4 * (thread - 2 * kHeadLanes);
  if (e >= p.at.value_dim) return;
  const int32_t channel = 2 * p.at.KeyFeatures() + task.head * p.at.value_dim + e;
  v.Store4(e, ConvolveFour(p, task.sequence, p.at.ValueOf(task.key_head, member) + e, channel, true));
}

// Norms the output in LDS into y or its terms, by the block's first wave.
template <int kWave, typename Output>
__device__ __forceinline__ void NormOutput(const MixedDecodeArgs& args, const DecodeCall& call, Output& output) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= max(kWave, kHeadLanes)) return;
  const MixerArgs& mixer = args.mixer;
  const GatedRmsNormParams& p = args.norm;
  const int64_t row = call.first * mixer.at.value_heads + call.task.head;
  const float* z = mixer.projected
                       ? mixer.x + call.first * mixer.x_stride +
                             mixer.at.ZOf(call.task.key_head, call.task.head - call.task.key_head * mixer.at.group)
                       : p.z + row * p.value_dim;
  const int lane = thread % kHeadLanes;
  double sum = 0.0;
  for (int e = 4 * lane; e < p.value_dim; e += 4 * kHeadLanes) sum = AddSquares(sum, output.Load4(e));
  const float factor = RmsFactor(HeadSum<kWave>(sum), p.value_dim, p.epsilon);
  if (thread >= kHeadLanes) return;
  float* y = p.y + (p.group > 1 ? TiledRow(p, row) : row) * p.value_dim;
  for (int e = 4 * lane; e < p.value_dim; e += 4 * kHeadLanes) {
    const Vec4 x = output.Load4(e);
    const Vec4 of_z = Load4(z + e);
    const Vec4 w = Load4(p.weight + e);
    StoreNormed<kWave>(
        p, y + e,
        Vec4{NormalizeAndGate(p, x.x, factor, w.x, of_z.x), NormalizeAndGate(p, x.y, factor, w.y, of_z.y),
             NormalizeAndGate(p, x.z, factor, w.z, of_z.z), NormalizeAndGate(p, x.w, factor, w.w, of_z.w)});
  }
}

}  // namespace gdn::gpu
