// Device code: loads bfloat16 elements as float32, and stores them rounded to nearest even. The same names for float
// elements let templates take either.
//
// Uses integer operations only (a shift to widen, an addition to round), because gfx906 has no bfloat16 arithmetic.
// Thread safety: pure functions.
//
//   const Vec4 x = Load4(row + at);  // four neighbours; row + at is aligned to 8 bytes
//   Store4(row + at, x);
//   StoreOne(row + at, LoadOne(row + from));
#pragma once

#include <cstdint>

#include "kernels/gpu/device.h"

namespace gdn::gpu {

__device__ __forceinline__ float RoundToBf16(float value) { return FromBf16(ToBf16(value)); }

// Returns the raw bits of four neighbouring elements, the first in the lowest bits. `p` is aligned to 8 bytes.
// WidenBf16x4 converts them to float32.
__device__ __forceinline__ uint64_t LoadBf16Bits(const uint16_t* p) { return *reinterpret_cast<const uint64_t*>(p); }
__device__ __forceinline__ Vec4 WidenBf16x4(uint64_t bits) {
  const uint32_t low = static_cast<uint32_t>(bits);
  const uint32_t high = static_cast<uint32_t>(bits >> 32);
  return {BitsToFloat(low << 16), BitsToFloat(low & 0xffff0000u), BitsToFloat(high << 16),
          BitsToFloat(high & 0xffff0000u)};
}

__device__ __forceinline__ Vec4 Load4(const uint16_t* p) { return WidenBf16x4(LoadBf16Bits(p)); }

__device__ __forceinline__ void Store4(uint16_t* p, const Vec4& x) {
  const uint32_t low = ToBf16(x.x) | static_cast<uint32_t>(ToBf16(x.y)) << 16;
  const uint32_t high = ToBf16(x.z) | static_cast<uint32_t>(ToBf16(x.w)) << 16;
  *reinterpret_cast<uint64_t*>(p) = low | static_cast<uint64_t>(high) << 32;
}

__device__ __forceinline__ float LoadOne(const float* p) { return *p; }
__device__ __forceinline__ float LoadOne(const uint16_t* p) { return FromBf16(*p); }
__device__ __forceinline__ void StoreOne(float* p, float x) { *p = x; }
__device__ __forceinline__ void StoreOne(uint16_t* p, float x) { *p = ToBf16(x); }

}  // namespace gdn::gpu
