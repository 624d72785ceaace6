// Operations on four elements: multiply-adds, and loads and stores at a row's end, where fewer than four may be left.
//
// Device code. Thread safety: functions write only memory they are given.
//
//   Vec4 v = LoadSome(row + column, width - column, aligned);
#pragma once

#include "kernels/gpu/bf16_elements.h"

namespace gdn::gpu {

__device__ __forceinline__ void MultiplyAdd(float a, const Vec4& b, Vec4& sum) {
  sum.x = fmaf(a, b.x, sum.x);
  sum.y = fmaf(a, b.y, sum.y);
  sum.z = fmaf(a, b.z, sum.z);
  sum.w = fmaf(a, b.w, sum.w);
}
__device__ __forceinline__ void MultiplyAdd(float a, const Vec4& b, float (&sum)[4]) { FmaEach(a, b, sum); }

// Loads up to four elements at p, of float or bfloat16 (uint16_t), as float32; those from `count` on (it may be
// negative) are not read and 0. `aligned`: p is aligned to four elements. StoreSome stores those before `count`.
template <typename Element, typename Count>
__device__ __forceinline__ Vec4 LoadSome(const Element* p, Count count, bool aligned) {
  if (aligned && count >= 4) return Load4(p);
  Vec4 v{0.0f, 0.0f, 0.0f, 0.0f};
  if (count > 0) v.x = LoadOne(p);
  if (count > 1) v.y = LoadOne(p + 1);
  if (count > 2) v.z = LoadOne(p + 2);
  if (count > 3) v.w = LoadOne(p + 3);
  return v;
}

template <typename Element, typename Count>
__device__ __forceinline__ void StoreSome(Element* p, Count count, bool aligned, const Vec4& v) {
  if (aligned && count >= 4) return Store4(p, v);
  if (count > 0) StoreOne(p, v.x);
  if (count > 1) StoreOne(p + 1, v.y);
  if (count > 2) StoreOne(p + 2, v.z);
  if (count > 3) StoreOne(p + 3, v.w);
}

}  // namespace gdn::gpu
