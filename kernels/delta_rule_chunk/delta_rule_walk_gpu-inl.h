// The parts of the walk over a sequence's chunks that do not depend on how S decays: loads of a chunk's rows into LDS,
// products with S spread over a group's lanes, products with a chunk's triangular matrices.
//
// Mapping of threads: delta_rule_chunk_gpu.hip. Thread safety: pure functions. For *_gpu.hip files only.
//
//   ForEachStage(mover, keys, /*next=*/queries, sh.rows, [&](int stage) {
//     ReadState<kWave, Shape>(sh.rows, stage, sh.values, lane, my_local, s);
//   });
#pragma once

#include "kernels/delta_rule_chunk/chunk_workspace_gpu-inl.h"
#include "kernels/gpu/rounds.h"

namespace gdn::gpu::walk {

inline constexpr int kC = kGpuChunkTokens;
inline constexpr int kStride = kC + 4;
static_assert(kBaseRoundTokens % kC == 0);

// A walk's thread blocks: kThreads threads, kColumns value columns a group of lanes, kElements elements of a column a
// lane. Blocks of kDeltaRuleThreads have a chunk's rows in LDS at once, and T beside P. Smaller blocks have kRows rows
// at a time (a stage), and P takes T's place: five of them fit a CU of gfx906.
template <int kThreads_, int kElements_, int kColumns_>
struct WalkShape {
  static constexpr int kThreads = kThreads_;
  static constexpr int kElements = kElements_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kGroups = kThreads / kColumnLanes;
  static constexpr int kBlockColumns = kGroups * kColumns;
  static constexpr int kSlots = kColumnLanes * kElements;
  static constexpr int kRows = 16 / kColumns;  // of a chunk, whose products with S a group's lanes hold one each
  static constexpr int kBatches = kC / kRows;
  static constexpr bool kStaged = kThreads < kDeltaRuleThreads;
  static constexpr int kStageRows = kStaged ? kRows : kC;
  static constexpr int kStages = kC / kStageRows;
  static constexpr int kPAt = kStaged ? 0 : kC * kStride;  // of P in WalkShared::squares; T is at 0
};

// Returns threadIdx.x. Stages have few registers: what they derive from it, they derive anew.
template <typename Shape>
__device__ __forceinline__ int Thread() {
  return static_cast<int>(Shape::kStaged ? NotHoisted(threadIdx.x) : threadIdx.x);
}

template <typename Shape>
struct WalkShared {
  LdsArray<float, Shape::kStageRows * Shape::kSlots> rows;  // of Q, then of K
  LdsArray<float, Shape::kBlockColumns * kStride> values;   // X, then U, by column
  LdsArray<float, Shape::kPAt + kC * kStride> squares;      // T and P
  LdsArray<float, 2 * kC> decays;                           // e^G, then e^{G_C-G}
};

// A chunk's rows of q or k in memory: `rows` of them exist, `stride` floats apart, of key_dim floats each.
struct ChunkRows {
  const float* from;
  int64_t stride;
  int rows;
  int key_dim;
};

// Moves a stage of a chunk's rows to LDS, rows of Shape::kSlots floats, zero past K and past the last row. Whole chunks
// of exact shapes take two steps: Fetch loads while the block computes, Store writes. Others are loaded and stored by
// Store. All threads of the block call.
template <typename Shape, bool kExact>
struct RowMover {
  static constexpr int kRowVectors = Shape::kSlots / 4;
  static constexpr int kStep = Shape::kThreads / kRowVectors;
  static constexpr int kMoved = Shape::kStageRows / kStep;

  Vec4 ahead[kMoved];

  __device__ __forceinline__ void Fetch(const ChunkRows& chunk, int stage) {
    if (!kExact || chunk.rows < kC) return;
    const uint32_t offset =
        threadIdx.x / kRowVectors * static_cast<uint32_t>(chunk.stride) + threadIdx.x % kRowVectors * 4;
    const float* from = chunk.from + stage * Shape::kStageRows * chunk.stride;
#pragma unroll
    for (int n = 0; n < kMoved; ++n) ahead[n] = Load4(At(from + n * kStep * chunk.stride, offset));
  }
  template <typename Rows>
  __device__ __forceinline__ void Store(const ChunkRows& chunk, int stage, Rows& to) const {
    if (kExact && chunk.rows == kC) {
#pragma unroll
      for (int n = 0; n < kMoved; ++n) to.Store4((n * Shape::kThreads + static_cast<int>(threadIdx.x)) * 4, ahead[n]);
      return;
    }
#pragma unroll 1
    for (int i = Thread<Shape>(); i < Shape::kStageRows * Shape::kSlots; i += Shape::kThreads) {
      const int row = stage * Shape::kStageRows + i / Shape::kSlots;
      const int at = i % Shape::kSlots;
      to[i] = row < chunk.rows && at < chunk.key_dim ? chunk.from[row * chunk.stride + at] : 0.0f;
    }
  }
};

// Calls body(stage) for each stage of `chunk`, of which the first is in LDS but for a barrier, when its rows are in
// `to`. Fetches `next`'s first stage meanwhile. All threads of the block call.
template <typename Shape, bool kExact, typename Rows, typename Body>
__device__ __forceinline__ void ForEachStage(RowMover<Shape, kExact>& mover, const ChunkRows& chunk,
                                             const ChunkRows& next, Rows& to, const Body& body) {
#pragma unroll
  for (int stage = 0; stage < Shape::kStages; ++stage) {
    if (stage > 0) {
      SyncThreads();
      mover.Store(chunk, stage, to);
    }
    SyncThreads();
    if (stage + 1 < Shape::kStages) {
      mover.Fetch(chunk, stage + 1);
    } else {
      mover.Fetch(next, 0);
    }
    body(stage);
  }
}

// Moves a matrix [C][C] to LDS, rows kStride apart.
template <typename Shape>
struct SquareMover {
  static constexpr int kMoved = kC * kC / 4 / Shape::kThreads;

  Vec4 ahead[kMoved];

  __device__ __forceinline__ void Fetch(const float* from) {
#pragma unroll
    for (int n = 0; n < kMoved; ++n) ahead[n] = Load4(At(from + n * Shape::kThreads * 4, Thread<Shape>() * 4u));
  }
  template <typename Squares>
  __device__ __forceinline__ void Store(Squares& to, int at) const {
#pragma unroll
    for (int n = 0; n < kMoved; ++n) {
      const int vector = n * Shape::kThreads + Thread<Shape>();
      to.Store4(at + vector / (kC / 4) * kStride + vector % (kC / 4) * 4, ahead[n]);
    }
  }
};

template <int kElements, typename Rows>
__device__ __forceinline__ void RowFragment(Rows& rows, int row, int lane, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    Unpack4(rows.Load4((row * kElements + i) * kColumnLanes + lane * 4), x + i);
  }
}

template <int kElements>
__device__ __forceinline__ float DotInOrder(const float (&a)[kElements], const float (&b)[kElements]) {
  float dot = a[0] * b[0];
#pragma unroll
  for (int i = 1; i < kElements; ++i) dot = fmaf(a[i], b[i], dot);
  return dot;
}

// Multiplies a stage's rows in LDS (q or k) with the group's columns of S, into `values`: the product of row b * kRows
// + lane / kColumns with the group's column lane % kColumns, whose number in the block is `column`. The loop is not
// unrolled, to save registers; ReadValues gives each lane what it has written.
template <int kWave, typename Shape, typename Rows, typename Values>
__device__ __forceinline__ void ReadState(Rows& rows, int stage, Values& values, int lane, int column,
                                          const float (&s)[Shape::kColumns][Shape::kElements]) {
  constexpr int kElements = Shape::kElements;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kRows = Shape::kRows;
#pragma unroll 1
  for (int b = 0; b < Shape::kStageRows / kRows; ++b) {
    float sum[8];
#pragma unroll
    for (int r = 0; r < kRows / 2; ++r) {
      if (kElements == 4 && r == 4) WaveBarrier();  // otherwise the compiler loads all 16 rows ahead, and spills
      float low[kElements];
      float high[kElements];
      RowFragment<kElements>(rows, b * kRows + r, lane, low);
      RowFragment<kElements>(rows, b * kRows + kRows / 2 + r, lane, high);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sum[r * kColumns + c] = HalveSums<8, kWave>(DotInOrder(s[c], low), DotInOrder(s[c], high), lane);
      }
    }
    const int row = stage * Shape::kStageRows + b * kRows + lane / kColumns;
    values[column * kStride + row] = SumOfLane<8, kWave, 4>(sum, lane);
  }
}

// The chunk's values of V or O in memory that are this lane's: row b * kRows + lane / kColumns of the group's column
// lane % kColumns, whose number in the head is `column`. `left` rows exist; others are read as zero.
template <typename Shape, bool kExact>
struct ValueRows {
  int block_column;  // the block's first in the head
  int value_dim;

  // function(b, offset) for each value that exists; `offset` is that of row b * kRows' own in floats.
  template <typename Function>
  __device__ __forceinline__ void ForEach(int64_t stride, int left, const Function& function) const {
    const int thread = Thread<Shape>();
    const int row = thread % kColumnLanes / Shape::kColumns;
    const int column = block_column + thread / kColumnLanes * Shape::kColumns + thread % Shape::kColumns;
    const uint32_t offset = row * static_cast<uint32_t>(stride) + column;
#pragma unroll
    for (int b = 0; b < Shape::kBatches; ++b) {
      if ((kExact || column < value_dim) && b * Shape::kRows + row < left) function(b, offset);
    }
  }
  __device__ __forceinline__ void Load(const float* from, int64_t stride, int left, float (&x)[Shape::kBatches]) const {
#pragma unroll
    for (int b = 0; b < Shape::kBatches; ++b) x[b] = 0.0f;
    ForEach(stride, left, [&](int b, uint32_t offset) { x[b] = *At(from + b * Shape::kRows * stride, offset); });
  }
  __device__ __forceinline__ void Store(float* to, int64_t stride, int left, const float (&x)[Shape::kBatches]) const {
    ForEach(stride, left, [&](int b, uint32_t offset) { *At(to + b * Shape::kRows * stride, offset) = x[b]; });
  }
};

// The lane's values of a chunk, x[b] of row b * kRows + lane / kColumns, from and to LDS.
template <typename Shape, typename Values>
__device__ __forceinline__ void ReadValues(Values& values, int lane, int column, float (&x)[Shape::kBatches]) {
#pragma unroll
  for (int b = 0; b < Shape::kBatches; ++b) x[b] = values[column * kStride + b * Shape::kRows + lane / Shape::kColumns];
}
template <typename Shape, typename Values>
__device__ __forceinline__ void WriteValues(Values& values, int lane, int column, const float (&x)[Shape::kBatches]) {
#pragma unroll
  for (int b = 0; b < Shape::kBatches; ++b) values[column * kStride + b * Shape::kRows + lane / Shape::kColumns] = x[b];
}

// out += matrix * x: `matrix`, lower triangular, is at `at` of `squares`; x is column `column` of `values`. out[b] is
// row b * kRows + lane / kColumns, as in ReadValues.
template <typename Shape, typename Squares, typename Values>
__device__ __forceinline__ void MultiplyLower(Squares& squares, int at, Values& values, int lane, int column,
                                              float (&out)[Shape::kBatches]) {
#pragma unroll
  for (int j = 0; j < kC; j += 4) {
    const Vec4 x = values.Load4(column * kStride + j);
#pragma unroll
    for (int b = j / Shape::kRows; b < Shape::kBatches; ++b) {
      const Vec4 m = squares.Load4(at + (b * Shape::kRows + lane / Shape::kColumns) * kStride + j);
      out[b] = fmaf(m.w, x.w, fmaf(m.z, x.z, fmaf(m.y, x.y, fmaf(m.x, x.x, out[b]))));
    }
  }
}

// s += rows^T values, summed over a stage's rows in order, for the lane's elements and the columns of group `group`.
template <typename Shape, typename Rows, typename Values>
__device__ __forceinline__ void AddOuterProducts(Rows& rows, int stage, Values& values, int group, int lane,
                                                 float (&s)[Shape::kColumns][Shape::kElements]) {
  constexpr int kElements = Shape::kElements;
  constexpr int kColumns = Shape::kColumns;
#pragma unroll 1
  for (int row = 0; row < Shape::kStageRows; row += 4) {
    float tailed[kColumns][4];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int at = (group * kColumns + c) * kStride + stage * Shape::kStageRows + row;
      Unpack4(values.Load4(at), tailed[c]);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float k[kElements];
      RowFragment<kElements>(rows, row + r, lane, k);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) s[c][i] = fmaf(k[i], tailed[c][r], s[c][i]);
      }
    }
  }
}

// Waves that a SIMD must be able to hold.
template <typename Shape>
inline constexpr int kLeastWaves = Shape::kElements > 8 ? Shape::kStaged ? 2 : 1
                                   : Shape::kStaged     ? 3
                                                        : 2;

// Costs of the shapes' blocks on gfx906, in us for 512 tokens by scripts/mi50_model.py: staged, wide, narrow.
template <int kElements>
inline constexpr BlockCost kWalkCosts[] = {{5, 46, 239}, {2, 89, 162}, {2, 76, 127}};
template <>
inline constexpr BlockCost kWalkCosts<16>[] = {{4, 77, 287}, {1, 149, 219}, {1, 135, 189}};

// Calls function(WalkShape<..>()) with the shape whose blocks should walk `sequences` sequences, for K up to 256, and
// returns its status. All shapes give the same bits.
template <int kWave, typename Function>
absl::Status WithShape(const LayerDims& dims, int64_t sequences, const Stream& stream, const Function& function) {
  return WithElements<16>(KeySlots(dims.key_dim), [&](auto elements) {
    using Staged = WalkShape<kDeltaRuleThreads / 2, elements(), 2>;
    using Wide = WalkShape<kDeltaRuleThreads, elements(), 2>;
    using Narrow = WalkShape<kDeltaRuleThreads, elements(), 1>;
    const auto blocks = [&](int columns) {
      return sequences * dims.value_heads * CeilDivide(dims.value_dim, int64_t{columns});
    };
    if constexpr (elements() >= 8 && kWave == 64) {
      const auto& costs = kWalkCosts<elements()>;
      const int64_t staged = RoundsCost(blocks(Staged::kBlockColumns), costs[0], stream);
      const int64_t wide = RoundsCost(blocks(Wide::kBlockColumns), costs[1], stream);
      const int64_t narrow = RoundsCost(blocks(Narrow::kBlockColumns), costs[2], stream);
      if (staged < std::min(wide, narrow)) return function(Staged());
      if (wide < narrow) return function(Wide());
    } else if constexpr (elements() >= 8) {
      const bool fills = blocks(Wide::kBlockColumns) >= int64_t{stream.processors} * 2;
      if (fills && dims.value_dim > Narrow::kBlockColumns) return function(Wide());
    }
    return function(Narrow());
  });
}

}  // namespace gdn::gpu::walk
