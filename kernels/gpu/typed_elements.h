// Device code: loads and stores elements whose dtype is known only at run time, as float32.
//
// Loading and widening are separate, so that several loads can be in flight before the first is used. The dtype is the
// same for the whole grid, so branches on it cost almost nothing.
// Thread safety: pure functions.
//
//   const Vec4 raw = LoadRaw4(x, dtype, index, count, vector);
//   const Vec4 values = WidenRaw4(raw, dtype);
//   StoreElement(y, dtype, index, sum);
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/gpu/device.h"

namespace gdn::gpu {

// Loads elements data[index .. index + 4) without conversion, for WidenRaw4: 16-bit ones lie two in x and two in y.
// Elements from index + count on are not read and become zero. `vector`: the four are in one aligned 16 bytes (F32) or
// 8, and count is not 1, 2 or 3.
__device__ __forceinline__ Vec4 LoadRaw4(const void* data, DType dtype, int64_t index, int32_t count, bool vector) {
  Vec4 raw{0.0f, 0.0f, 0.0f, 0.0f};
  if (count <= 0) return raw;
  if (dtype == DType::kF32) {
    const float* p = static_cast<const float*>(data) + index;
    if (vector) return Load4(p);
    raw.x = p[0];
    if (count > 1) raw.y = p[1];
    if (count > 2) raw.z = p[2];
    if (count > 3) raw.w = p[3];
    return raw;
  }
  const uint16_t* p = static_cast<const uint16_t*>(data) + index;
  if (vector) {
    const uint64_t bits = *reinterpret_cast<const uint64_t*>(p);
    raw.x = BitsToFloat(static_cast<uint32_t>(bits));
    raw.y = BitsToFloat(static_cast<uint32_t>(bits >> 32));
    return raw;
  }
  const uint32_t e1 = count > 1 ? p[1] : 0u;
  const uint32_t e2 = count > 2 ? p[2] : 0u;
  const uint32_t e3 = count > 3 ? p[3] : 0u;
  raw.x = BitsToFloat(p[0] | e1 << 16);
  raw.y = BitsToFloat(e2 | e3 << 16);
  return raw;
}

__device__ __forceinline__ Vec4 WidenRaw4(const Vec4& raw, DType dtype) {
  if (dtype == DType::kF32) return raw;
  const uint32_t low = FloatToBits(raw.x);
  const uint32_t high = FloatToBits(raw.y);
  if (dtype == DType::kBF16) {
    return {BitsToFloat(low << 16), BitsToFloat(low & 0xffff0000u), BitsToFloat(high << 16),
            BitsToFloat(high & 0xffff0000u)};
  }
  return {FromF16(static_cast<uint16_t>(low)), FromF16(static_cast<uint16_t>(low >> 16)),
          FromF16(static_cast<uint16_t>(high)), FromF16(static_cast<uint16_t>(high >> 16))};
}

__device__ __forceinline__ uint16_t NarrowElement(DType dtype, float value) {
  return dtype == DType::kBF16 ? ToBf16(value) : ToF16(value);
}

__device__ __forceinline__ void StoreElement(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = NarrowElement(dtype, value);
  }
}

// Stores four values, rounded to nearest even, as elements data[index .. index + 4), which must be in one aligned 16
// bytes (F32) or 8.
__device__ __forceinline__ void StoreElements4(void* data, DType dtype, int64_t index, const Vec4& values) {
  if (dtype == DType::kF32) return Store4(static_cast<float*>(data) + index, values);
  const uint32_t low = NarrowElement(dtype, values.x) | static_cast<uint32_t>(NarrowElement(dtype, values.y)) << 16;
  const uint32_t high = NarrowElement(dtype, values.z) | static_cast<uint32_t>(NarrowElement(dtype, values.w)) << 16;
  *reinterpret_cast<uint64_t*>(static_cast<uint16_t*>(data) + index) = low | static_cast<uint64_t>(high) << 32;
}

// True if LoadRaw4 and StoreElements4 can use vectors, from every fourth element on, on rows that are `stride` elements
// apart and start at `data`.
inline bool AllowsRaw4(const void* data, DType dtype, int64_t stride) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return stride % 4 == 0 && address % (4 * DTypeSize(dtype)) == 0;
}

}  // namespace gdn::gpu
