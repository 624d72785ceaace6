// Operations on four floats: multiply-adds, and loads and stores at a row's end, where fewer than four may be left.
//
// Device code. Thread safety: functions write only memory they are given.
//
//   Vec4 v = LoadSome(row + column, width - column, aligned);
#pragma once

#include "kernels/gpu/device.h"

namespace gdn::gpu {

__device__ __forceinline__ void MultiplyAdd(float a, const Vec4& b, Vec4& sum) {
  sum.x = fmaf(a, b.x, sum.x);
  sum.y = fmaf(a, b.y, sum.y);
  sum.z = fmaf(a, b.z, sum.z);
  sum.w = fmaf(a, b.w, sum.w);
}

// Loads up to four floats at p; those from `count` on are 0.
template <typename Count>
__device__ __forceinline__ Vec4 LoadSome(const float* p, Count count, bool aligned) {
  if (aligned && count >= 4) return Load4(p);
  Vec4 v{0.0f, 0.0f, 0.0f, 0.0f};
  if (count > 0) v.x = p[0];
  if (count > 1) v.y = p[1];
  if (count > 2) v.z = p[2];
  if (count > 3) v.w = p[3];
  return v;
}

template <typename Count>
__device__ __forceinline__ void StoreSome(float* p, Count count, bool aligned, const Vec4& v) {
  if (aligned && count >= 4) return Store4(p, v);
  if (count > 0) p[0] = v.x;
  if (count > 1) p[1] = v.y;
  if (count > 2) p[2] = v.z;
  if (count > 3) p[3] = v.w;
}

}  // namespace gdn::gpu
