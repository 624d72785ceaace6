// Shared by the two kernels of delta_rule_split_gpu.hip: spans of chunks, tiles of 8 rows x 4 columns per lane, and
// loads of rows through registers into LDS.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   const Place place = ThisPlace();
//   float sum[kTileRows][4] = {};
//   MultiplyTile<kC>(sh.q, 0, kKeys + 4, sh.b, place.quarter * kTile, place, sum);
#pragma once

#include <type_traits>

#include "base/status_macros.h"
#include "kernels/delta_rule_chunk/chunk_workspace_gpu-inl.h"
#include "kernels/gpu/vec4_math.h"

namespace gdn::gpu::split {

inline constexpr int kC = kGpuChunkTokens;
inline constexpr int kThreads = 128;
inline constexpr int kQuarters = 4;
inline constexpr int kLanes = kThreads / kQuarters;
inline constexpr int kSlice = 32;                 // columns of a states block, and of a quarter of an outputs block
inline constexpr int kTile = kC * kSlice;         // floats
inline constexpr int kColumnGroups = kSlice / 4;  // groups of 4 neighbouring columns
inline constexpr int kRowGroups = kLanes / kColumnGroups;
inline constexpr int kTileRows = kC / kRowGroups;  // rows of a lane: row_group + kRowGroups * r
inline constexpr int kStride = kC + 4;
static_assert(kC == 32 && kTileRows == 8);

struct Place {
  int quarter, lane, row_group, column;  // column: first of the lane's 4 columns in its slice
};
__device__ __forceinline__ Place ThisPlace() {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes;
  return {thread / kLanes, lane, lane / kColumnGroups, lane % kColumnGroups * 4};
}

// Returns row[at .. at + 3] as float32; elements whose index is `count` or more are zero. kExact: all four exist and
// are aligned to four elements.
template <bool kExact, typename Element>
__device__ __forceinline__ Vec4 LoadGuarded(const Element* row, int at, int count) {
  if constexpr (kExact) return Load4(row + at);
  return LoadSome(row + at, count - at, /*aligned=*/false);
}
template <bool kExact, typename Element>
__device__ __forceinline__ void StoreGuarded(Element* row, int at, int count, const Vec4& x) {
  if constexpr (kExact) return Store4(row + at, x);
  StoreSome(row + at, count - at, /*aligned=*/false, x);
}

// sum[r][c] += dot of row row_group + 4 r of `a` with column `column` + c of `b`, over kDepth elements (a multiple of
// 4). `a` starts at element a_at with rows a_stride apart; `b` starts at b_at with rows of kSlice floats.
template <int kDepth, typename A, typename B>
__device__ __forceinline__ void MultiplyTile(A& a, int a_at, int a_stride, B& b, int b_at, const Place& place,
                                             float (&sum)[kTileRows][4]) {
#pragma unroll 2
  for (int d = 0; d < kDepth; d += 4) {
    Vec4 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = b.Load4(b_at + (d + i) * kSlice + place.column);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const Vec4 y = a.Load4(a_at + (place.row_group + kRowGroups * r) * a_stride + d);
      MultiplyAdd(y.x, x[0], sum[r]);
      MultiplyAdd(y.y, x[1], sum[r]);
      MultiplyAdd(y.z, x[2], sum[r]);
      MultiplyAdd(y.w, x[3], sum[r]);
    }
  }
}

// Loads a chunk's rows of q or k through registers into LDS [kC][kKeys + 4], zero past K and past the last row. Fetch
// loads row 0 from `from`, rows `stride` floats apart; Store writes what Fetch loaded. All threads of the block call.
template <int kKeys, bool kExact>
struct RowMover {
  static constexpr int kRowVectors = kKeys / 4;
  static constexpr int kStep = kThreads / kRowVectors;
  static constexpr int kMoved = kC / kStep;
  Vec4 ahead[kMoved];

  __device__ __forceinline__ void Fetch(const float* from, int64_t stride, int rows, int key_dim) {
    const int row = static_cast<int>(threadIdx.x) / kRowVectors;
    const int at = static_cast<int>(threadIdx.x) % kRowVectors * 4;
#pragma unroll
    for (int n = 0; n < kMoved; ++n) {
      ahead[n] = Vec4{0.0f, 0.0f, 0.0f, 0.0f};
      if (row + n * kStep < rows) ahead[n] = LoadGuarded<kExact>(from + (row + n * kStep) * stride, at, key_dim);
    }
  }
  template <typename Rows>
  __device__ __forceinline__ void Store(Rows& to) const {
    const int row = static_cast<int>(threadIdx.x) / kRowVectors;
    const int at = static_cast<int>(threadIdx.x) % kRowVectors * 4;
#pragma unroll
    for (int n = 0; n < kMoved; ++n) to.Store4((row + n * kStep) * (kKeys + 4) + at, ahead[n]);
  }
};

// Loads a dense [C][C] matrix of a workspace block through registers into LDS [C][kStride]: Fetch loads, Store writes.
// All threads of the block call.
struct SquareMover {
  Vec4 ahead[kC * kC / 4 / kThreads];

  __device__ __forceinline__ void Fetch(const float* from) {
#pragma unroll
    for (int n = 0; n < kC * kC / 4 / kThreads; ++n) ahead[n] = Load4(from + (n * kThreads + threadIdx.x) * 4);
  }
  template <typename Square>
  __device__ __forceinline__ void Store(Square& to) const {
#pragma unroll
    for (int n = 0; n < kC * kC / 4 / kThreads; ++n) {
      const int i = n * kThreads + static_cast<int>(threadIdx.x);
      to.Store4(i / (kC / 4) * kStride + i % (kC / 4) * 4, ahead[n]);
    }
  }
};

// kPreparedFloats: floats that the first kernel prepares for a chunk and value head. PreparedOf returns their address
// for sequence `in_span` and chunk `chunk`, both counted from the span's first; `first_row` is the sequence's first row
// in the batch. The next chunk's are `value_heads` times kPreparedFloats further on.
template <int kKeys, bool kByChannel>
inline constexpr int kPreparedFloats = kByChannel ? ChannelWorkspace::Floats(kKeys) : ChunkWorkspace::kFloats;
template <int kKeys, bool kByChannel>
__device__ __forceinline__ const float* PreparedOf(const ChunkArgs& args, const Span& span, int64_t first_row,
                                                   int in_span, int chunk, int head) {
  const int32_t heads = args.rule.value_heads;
  const int64_t block = kByChannel ? (int64_t{in_span} * span.chunks + chunk) * heads + head
                                   : ChunkBlock(first_row, span.sequence + in_span, span.chunk + chunk, heads, head);
  return args.workspace + block * kPreparedFloats<kKeys, kByChannel>;
}

template <int kKeys>
__device__ __forceinline__ float* StateOf(const Span& span, const DeltaRuleArgs& p, int sequence, int chunk, int head) {
  const int64_t block = (int64_t{sequence} * span.chunks + chunk) * p.value_heads + head;
  return span.states + block * kKeys * span.value_slots;
}

// Returns V, rounded up to a multiple of kSlice.
inline int64_t ValueSlots(const LayerDims& dims) { return CeilDivide(dims.value_dim, kSlice) * kSlice; }

// Launch the first and the second kernel of one span, LaunchBoth one after the other. `exact`: all vectors are whole
// and aligned, that is, K = kKeys and V fills its slices. by_channel: the span's chunks have been prepared for decays
// by channel. Their keys in the workspace are whole, so only V counts for `exact`.
absl::Status LaunchStates(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool by_channel,
                          bool exact, const Stream& stream);
absl::Status LaunchOutputs(const ChunkArgs& args, const Span& span, bool by_channel, bool exact, const Stream& stream);
inline absl::Status LaunchBoth(const ChunkArgs& args, const StateLayout& layout, const Span& span, bool by_channel,
                               bool exact, const Stream& stream) {
  GDN_RETURN_IF_ERROR(LaunchStates(args, layout, span, by_channel, exact, stream));
  return LaunchOutputs(args, span, by_channel, exact, stream);
}

// Calls launch(kKeys, kByChannel) with integral constants and returns its result: KeySlots(K), for K up to 128, and
// `by_channel`.
template <typename Launcher>
absl::Status WithSplitKernels(int32_t key_dim, bool by_channel, const Launcher& launch) {
  const auto with_keys = [&](auto keys) {
    return by_channel ? launch(keys, std::true_type()) : launch(keys, std::false_type());
  };
  return KeySlots(key_dim) == 64 ? with_keys(std::integral_constant<int, 64>())
                                 : with_keys(std::integral_constant<int, 128>());
}

}  // namespace gdn::gpu::split
