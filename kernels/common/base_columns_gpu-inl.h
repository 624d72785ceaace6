// Loads and stores of base columns on the GPU: float32 or bfloat16 in memory, always float32 in registers.
// delta_rule_gpu-inl.h defines how a column is spread over lanes.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   Base* columns = HeadBase<Base>(p, slot, head) + int64_t{column} * p.key_dim;  // Base: float or uint16_t
//   LoadState<kElements, kColumns, kExact>(columns, count, lane, p.key_dim, s);
//   if constexpr (kRounds<Base>) RoundState<kElements, kColumns>(s);
//   StoreState<kElements, kColumns, kExact>(columns, count, lane, p.key_dim, s);
#pragma once

#include "kernels/common/delta_rule_gpu-inl.h"
#include "kernels/gpu/bf16_elements.h"

namespace gdn::gpu {

// A lane's kElements elements of a column in the base's own dtype. HoldColumn loads them; WidenColumn converts them to
// float32 when they are used. A prefetched bfloat16 column thus takes half the registers.
template <int kElements, typename Base>
struct HeldColumn {
  float x[kElements];
};
template <int kElements>
struct HeldColumn<kElements, uint16_t> {
  uint64_t bits[kElements / 4];
};
template <int kElements, bool kWhole>
__device__ __forceinline__ void HoldColumn(const float* column, int lane, int key_dim,
                                           HeldColumn<kElements, float>& held) {
  LoadVectors<kElements, kWhole>(column, lane, key_dim, held.x);
}
template <int kElements, bool kWhole>
__device__ __forceinline__ void HoldColumn(const uint16_t* column, int lane, int key_dim,
                                           HeldColumn<kElements, uint16_t>& held) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    const int at = i * kColumnLanes + lane * 4;
    held.bits[i / 4] = kWhole || at < key_dim ? LoadBf16Bits(column + at) : 0;
  }
}
template <int kElements>
__device__ __forceinline__ void WidenColumn(const HeldColumn<kElements, float>& held, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = held.x[i];
}
template <int kElements>
__device__ __forceinline__ void WidenColumn(const HeldColumn<kElements, uint16_t>& held, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) Unpack4(WidenBf16x4(held.bits[i / 4]), x + i);
}

// Loads the lane's part of `count` columns of the base, at most kColumns, from `columns` on. The other columns of `s`
// become zero. StoreState stores them. kExact: K fills all lanes, all is aligned to 4 elements, `count` is ignored.
template <int kElements, int kColumns, bool kExact, typename Element>
__device__ __forceinline__ void LoadState(const Element* columns, int count, int lane, int key_dim,
                                          float (&s)[kColumns][kElements]) {
  const int64_t stride = kExact ? kColumnLanes * kElements : key_dim;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (kExact || c < count) {
      LoadFragment<kElements, kExact>(columns + c * stride, lane, key_dim, s[c]);
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) s[c][i] = 0.0f;
    }
  }
}
template <int kElements, int kColumns, bool kExact, typename Element>
__device__ __forceinline__ void StoreState(Element* columns, int count, int lane, int key_dim,
                                           const float (&s)[kColumns][kElements]) {
  const int64_t stride = kExact ? kColumnLanes * kElements : key_dim;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (kExact || c < count) StoreFragment<kElements, kExact>(columns + c * stride, lane, key_dim, s[c]);
  }
}

// True if storing float32 values to a base with elements of this type rounds them: uint16_t, which is bfloat16.
template <typename Base>
inline constexpr bool kRounds = std::is_same_v<Base, uint16_t>;

// Returns the base [V][K] of value head `head` in slot `slot` of the pool. Base: float, or uint16_t for bfloat16.
template <typename Base>
__device__ __forceinline__ Base* HeadBase(const DeltaRuleArgs& p, int slot, int head) {
  return reinterpret_cast<Base*>(p.pool + slot * p.at.slot_floats + p.at.base) +
         int64_t{head} * p.value_dim * p.key_dim;
}

// Rounds float32 values to bfloat16 in place, as a store to a bfloat16 base and a load would.
template <int kElements, int kColumns>
__device__ __forceinline__ void RoundState(float (&s)[kColumns][kElements]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) s[c][i] = RoundToBf16(s[c][i]);
  }
}

}  // namespace gdn::gpu
