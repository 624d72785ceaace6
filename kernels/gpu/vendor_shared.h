// device.h's part that is the same for AMD and NVIDIA. Included by device.h only, after the vendor's header.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/grid.h"
#include "kernels/gpu/loading.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/vec4.h"

namespace gdn::gpu {

__device__ __forceinline__ float BitsToFloat(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t FloatToBits(float value) { return __float_as_uint(value); }

__device__ __forceinline__ Vec4 Load4(const float* p) { return *reinterpret_cast<const Vec4*>(p); }
__device__ __forceinline__ void Store4(float* p, const Vec4& v) { *reinterpret_cast<Vec4*>(p) = v; }

// An array in a block's LDS; operator[] and the vector accesses take an element's index, a multiple of 4 (of 2) for
// vectors of 4 (of 2).
template <typename T, int kCount>
struct LdsArray {
  alignas(16) T data[kCount];
  __device__ __forceinline__ T& operator[](int i) { return data[i]; }
  __device__ __forceinline__ Vec2 Load2(int i) const { return *reinterpret_cast<const Vec2*>(&data[i]); }
  __device__ __forceinline__ Vec4 Load4(int i) const { return *reinterpret_cast<const Vec4*>(&data[i]); }
  __device__ __forceinline__ void Store4(int i, const Vec4& v) { *reinterpret_cast<Vec4*>(&data[i]) = v; }
};

template <typename T>
__device__ __forceinline__ T& SharedMemory() {
  static_assert(sizeof(T) <= kStaticLdsBytes, "more LDS than a block may declare");
  __shared__ T shared;
  return shared;
}

__device__ __forceinline__ void SyncThreads() { __syncthreads(); }

// As SharedMemory, of a size that is not limited to what a block may declare; Grid::lds_bytes must be sizeof(T).
template <typename T>
__device__ __forceinline__ T& LargeSharedMemory() {
  extern __shared__ Vec4 large_lds[];
  return *reinterpret_cast<T*>(large_lds);
}

template <typename... Params, typename... Args>
absl::Status LaunchKernel(const char* name, void (*kernel)(Params...), const Grid& blocks, int threads,
                          const Stream& stream, const Args&... args) {
  if (LoadingOnly::active()) {
    GDN_GPU_API(FuncAttributes) attributes;
    return RuntimeStatus(
        static_cast<int>(GDN_GPU_API(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(kernel))), name);
  }
  const dim3 grid(static_cast<unsigned>(blocks.x), static_cast<unsigned>(blocks.y), static_cast<unsigned>(blocks.z));
  const auto handle = static_cast<GDN_GPU_API(Stream_t)>(stream.handle);
  if (blocks.lds_bytes > kStaticLdsBytes) {
    const int status = AllowLds(reinterpret_cast<const void*>(kernel), blocks.lds_bytes);
    if (status != 0) return RuntimeStatus(status, name);
  }
  if (blocks.early && stream.overlaps) {
    LaunchEarly(kernel, grid, threads, handle, args...);
  } else {
    kernel<<<grid, threads, static_cast<size_t>(blocks.lds_bytes), handle>>>(args...);
  }
  return RuntimeStatus(static_cast<int>(GDN_GPU_API(GetLastError)()), name);
}

}  // namespace gdn::gpu
