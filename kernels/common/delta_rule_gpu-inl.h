// Shared by the GPU forms of the delta rule: their arguments, and how a column of the state is spread over lanes.
//
// On the GPU the base is [HV][V][K]: a value column's K elements are contiguous. 16 lanes hold a column, kElements
// each: element 64 i + 4 lane + c is x[4 i + c] of its lane, zero past K. Lanes and the order of sums are the same for
// every wave width, batch and path, so the bits are too. The chunked path for waves of 32 differs.
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   float k[kElements];
//   LoadFragment<kElements, kExact>(row, lane, p.key_dim, k);
//   const float dot = GroupSum<kColumnLanes, kWave>(Dot(k, s[c]));
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/delta_rule.h"
#include "kernels/gpu/bf16_elements.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/wave.h"

namespace gdn::gpu {

inline constexpr int kColumnLanes = 16;
inline constexpr int kDeltaRuleThreads = 256;
inline constexpr int kDeltaRuleGroups = kDeltaRuleThreads / kColumnLanes;  // groups of 16 lanes in a thread block

// Offsets of a slot's sections from the slot's start, and the sizes of a slot and of its conv section, all in floats.
struct StateOffsets {
  int64_t slot_floats, base, log_k, log_u, log_g, conv, conv_floats;
};

// DeltaRuleParams as kernels take them: all pointers are device memory, not owned. `group` is value_heads / key_heads.
struct DeltaRuleArgs {
  float* pool;
  StateOffsets at;
  const int32_t* cu_seqlens;
  const int32_t* slots;
  const float* q;
  const float* k;
  const float* v;
  const float* g;
  const float* beta;
  float* output;
  int64_t q_stride, k_stride, v_stride;
  int32_t key_heads, value_heads, group, key_dim, value_dim;
  int32_t column_blocks;  // blocks of value columns that a head is divided into
};

inline StateOffsets OffsetsOf(const StateLayout& layout) {
  return {layout.slot_floats(),
          layout.base_offset(),
          layout.log_k_offset(),
          layout.log_u_offset(),
          layout.log_g_offset(),
          layout.conv_offset(),
          layout.conv_columns() * layout.dims().conv_channels()};
}

inline DeltaRuleArgs MakeDeltaRuleArgs(const DeltaRuleParams& params, const DeviceBatch& batch, int block_columns) {
  const LayerDims& dims = params.pool.layout.dims();
  DeltaRuleArgs args;
  args.pool = params.pool.data;
  args.at = OffsetsOf(params.pool.layout);
  args.cu_seqlens = batch.cu_seqlens;
  args.slots = batch.slots;
  args.q = params.q;
  args.k = params.k;
  args.v = params.v;
  args.g = params.g;
  args.beta = params.beta;
  args.output = params.output;
  args.q_stride = params.q_stride;
  args.k_stride = params.k_stride;
  args.v_stride = params.v_stride;
  args.key_heads = dims.key_heads;
  args.value_heads = dims.value_heads;
  args.group = dims.group();
  args.key_dim = dims.key_dim;
  args.value_dim = dims.value_dim;
  args.column_blocks = static_cast<int32_t>(CeilDivide(dims.value_dim, block_columns));
  return args;
}

// True if every fragment of a base is full and 16-byte aligned: K is 16 `elements` and V a multiple of `block_columns`.
// Otherwise kernels guard single elements; the bits are the same.
inline bool ExactColumns(const StatePoolView& pool, int elements, int block_columns) {
  const LayerDims& dims = pool.layout.dims();
  return dims.key_dim == kColumnLanes * elements && dims.value_dim % block_columns == 0 && Aligned16(pool.data);
}
// True if the q, k and v of every token start at a multiple of 16 bytes.
inline bool AlignedRows(const DeltaRuleParams& params) {
  return Aligned16(params.q, params.k, params.v) && params.q_stride % 4 == 0 && params.k_stride % 4 == 0 &&
         params.v_stride % 4 == 0;
}
inline bool ExactRule(const DeltaRuleParams& params, int elements, int block_columns) {
  return ExactColumns(params.pool, elements, block_columns) && AlignedRows(params);
}

// True if LoadVectors can read every row of q, k and v and every column of a base: all 16-byte aligned, and K and V
// multiples of 4.
inline bool VectorRule(const DeltaRuleParams& params) {
  const LayerDims& dims = params.pool.layout.dims();
  return dims.key_dim % 4 == 0 && dims.value_dim % 4 == 0 && Aligned16(params.pool.data) && AlignedRows(params);
}

// Calls function(integral_constant<int, n>) with a lane's elements n: the smallest of 4, 8, 16, .. kMost with 16 n >=
// K. K must be at most 16 kMost. Returns what the function returns.
template <int kMost, int kElements = 4, typename Function>
absl::Status WithElements(int32_t key_dim, Function&& function) {
  if constexpr (kElements < kMost) {
    if (key_dim > kColumnLanes * kElements) {
      return WithElements<kMost, 2 * kElements>(key_dim, std::forward<Function>(function));
    }
  }
  return function(std::integral_constant<int, kElements>());
}

// The sequence, the value head, its key head, and the index of the block of value columns that a thread block computes.
// Column blocks are innermost, so that thread blocks that read the same keys run side by side.
struct BlockTask {
  int32_t sequence, head, key_head, column_block;
};
__device__ __forceinline__ BlockTask TaskOf(const DeltaRuleArgs& p) {
  const uint32_t block = blockIdx.x;
  const uint32_t row = block / static_cast<uint32_t>(p.column_blocks);
  const uint32_t sequence = row / static_cast<uint32_t>(p.value_heads);
  BlockTask task;
  task.column_block = static_cast<int32_t>(block - row * p.column_blocks);
  task.sequence = static_cast<int32_t>(sequence);
  task.head = static_cast<int32_t>(row - sequence * p.value_heads);
  task.key_head = task.head / p.group;
  return task;
}

// True if the row has all elements that any lane holds in x[i] .. x[i + 3]; `i` is a multiple of 4. Uniform across the
// block, so only a row's last vectors need per-lane guards, whose masks would fill the scalar registers. The first half
// always exists, because kElements is the smallest size that holds K.
template <int kElements>
__device__ __forceinline__ bool Whole(int i, int key_dim) {
  return (kElements > 4 && i < kElements / 2) || (i + 4) * kColumnLanes <= key_dim;
}

// Loads this lane's elements (lane is 0 .. 15) of a row of key_dim elements as float32; elements past key_dim become
// zero. StoreFragment stores them. Element: float, or uint16_t for bfloat16. kExact: the row fills all lanes and is
// aligned to four elements.
template <int kElements, bool kExact, typename Element>
__device__ __forceinline__ void LoadFragment(const Element* row, int lane, int key_dim, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    const int at = i * kColumnLanes + lane * 4;
    if constexpr (kExact) {
      Unpack4(Load4(row + at), x + i);
    } else if (Whole<kElements>(i, key_dim)) {
#pragma unroll
      for (int c = 0; c < 4; ++c) x[i + c] = LoadOne(row + at + c);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float inside = LoadOne(row + min(at + c, key_dim - 1));
        x[i + c] = at + c < key_dim ? inside : 0.0f;
      }
    }
  }
}

template <int kElements, bool kExact, typename Element>
__device__ __forceinline__ void StoreFragment(Element* row, int lane, int key_dim, const float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    const int at = i * kColumnLanes + lane * 4;
    if constexpr (kExact) {
      Store4(row + at, {x[i], x[i + 1], x[i + 2], x[i + 3]});
    } else if (Whole<kElements>(i, key_dim)) {
#pragma unroll
      for (int c = 0; c < 4; ++c) StoreOne(row + at + c, x[i + c]);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (at + c < key_dim) StoreOne(row + at + c, x[i + c]);
      }
    }
  }
}

// LoadFragment and StoreFragment by vectors of four: rows are 16-byte aligned (bfloat16: 8) and K is a multiple of 4.
// kWhole: K fills all lanes (K = 16 kElements), so nothing is compared.
template <int kElements, bool kWhole, typename Element>
__device__ __forceinline__ void LoadVectors(const Element* row, int lane, int key_dim, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    const int at = i * kColumnLanes + lane * 4;
    Vec4 vector{0.0f, 0.0f, 0.0f, 0.0f};
    if (kWhole || at < key_dim) vector = Load4(row + at);
    Unpack4(vector, x + i);
  }
}
template <int kElements, bool kWhole, typename Element>
__device__ __forceinline__ void StoreVectors(Element* row, int lane, int key_dim, const float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    const int at = i * kColumnLanes + lane * 4;
    if (kWhole || at < key_dim) Store4(row + at, {x[i], x[i + 1], x[i + 2], x[i + 3]});
  }
}

// Returns the address of base[offset]. `base` is uniform across lanes; `offset` counts elements and must stay below 4
// GiB in bytes. A 32-bit byte offset takes one register a lane, an address two.
template <typename Element>
__device__ __forceinline__ Element* At(Element* base, uint32_t offset) {
  using Byte = std::conditional_t<std::is_const_v<Element>, const char, char>;
  return reinterpret_cast<Element*>(reinterpret_cast<Byte*>(base) + offset * uint32_t{sizeof(Element)});
}

// Loads this lane's elements of the piece that starts at `row`, spread over lanes as in LoadFragment. `left` elements
// of the whole row remain from there; missing ones are zero. kExact: the whole piece exists and is 16-byte aligned.
template <int kElements, bool kExact>
__device__ __forceinline__ void LoadPiece(const float* row, int lane, int left, float (&x)[kElements]) {
  if constexpr (kExact) {
    LoadFragment<kElements, true>(row, lane, left, x);
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int at = i / 4 * 4 * kColumnLanes + lane * 4 + i % 4;
      x[i] = at < left ? row[at] : 0.0f;
    }
  }
}

// Loads kColumns adjacent floats, of which the first `count` exist; the others become zero. kExact: all exist, and
// `from` is 16-byte aligned if kColumns is a multiple of 4.
template <int kColumns, bool kExact>
__device__ __forceinline__ void LoadColumns(const float* from, int count, float (&x)[kColumns]) {
  if constexpr (kExact && kColumns % 4 == 0) {
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) Unpack4(Load4(from + c), x + c);
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[c] = kExact || c < count ? from[c] : 0.0f;
  }
}

// Returns this lane's part of a dot product, accumulated in four sums; GroupSum over the column's lanes completes it.
template <int kElements>
__device__ __forceinline__ float Dot(const float (&a)[kElements], const float (&b)[kElements]) {
  float sum[4] = {a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]};
#pragma unroll
  for (int i = 4; i < kElements; ++i) sum[i & 3] = fmaf(a[i], b[i], sum[i & 3]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// A sum of products whose error is below float32's precision. Each product is two floats, only one of which is widened:
// widening both factors takes registers that cost gfx906 occupancy.
struct WideSum {
  double nearest = 0.0;
  float rest = 0.0f;

  __device__ __forceinline__ void Add(float a, float b) {
    const float product = a * b;
    rest += fmaf(a, b, -product);
    nearest += static_cast<double>(product);
  }
  __device__ __forceinline__ double Total() const { return nearest + static_cast<double>(rest); }
};
template <int kElements>
__device__ __forceinline__ double WideDot(const float (&a)[kElements], const float (&b)[kElements]) {
  WideSum sum;
#pragma unroll
  for (int i = 0; i < kElements; ++i) sum.Add(a[i], b[i]);
  return sum.Total();
}

// Adds two values across each pair of lanes that ButterflyPartner<kMask> makes. The lane without bit kMask returns the
// pair's sum of `low`, the other that of `high`. Passed by value: gfx906 would resolve a lane-dependent array index by
// comparing it with every possible index.
template <int kMask, int kWave, typename T>
__device__ __forceinline__ T HalveSums(T low, T high, int lane) {
  const bool upper = (lane & kMask) != 0;
  const T passed = upper ? low : high;
  const T kept = upper ? high : low;
  return kept + ButterflyPartner<kMask, kWave>(passed);
}

// Sums each of kValues values (a power of two up to 16) over the 16 lanes of a column. A lane returns the sum of value
// lane * kValues / 16, rounded down. All 16 lanes take part. Each step halves the values a lane holds, so all sums
// together cost little more than one. The order of a sum's terms does not depend on kValues. T is float or double.
template <int kValues, int kWave, int kMask = kColumnLanes / 2, typename T>
__device__ __forceinline__ T SumOfLane(const T (&x)[kValues], int lane) {
  if constexpr (kMask == 0) {
    static_assert(kValues == 1);
    return x[0];
  } else if constexpr (kValues == 1) {
    const T sum[1] = {x[0] + ButterflyPartner<kMask, kWave>(x[0])};
    return SumOfLane<1, kWave, kMask / 2>(sum, lane);
  } else {
    constexpr int kHalf = kValues / 2;
    T sums[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) sums[i] = HalveSums<kMask, kWave>(x[i], x[i + kHalf], lane);
    return SumOfLane<kHalf, kWave, kMask / 2>(sums, lane);
  }
}

// Zeroes the output of a padding sequence: the task's value head and column block, in token rows [first, end) of the
// batch. All kThreads threads of the block take part.
template <int kThreads = kDeltaRuleThreads>
__device__ __forceinline__ void ZeroOutput(const DeltaRuleArgs& p, const BlockTask& task, int block_columns,
                                           int64_t first, int64_t end) {
  const int column = task.column_block * block_columns;
  const int columns = min(block_columns, p.value_dim - column);
  for (int64_t i = threadIdx.x; i < (end - first) * columns; i += kThreads) {
    const int64_t row = (first + i / columns) * p.value_heads + task.head;
    p.output[row * p.value_dim + column + i % columns] = 0.0f;
  }
}

}  // namespace gdn::gpu
