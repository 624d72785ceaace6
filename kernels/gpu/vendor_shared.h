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

// sum[0 .. 3] += a * b.
__device__ __forceinline__ void FmaEach(float a, const Vec4& b, float* sum) {
  sum[0] = fmaf(a, b.x, sum[0]);
  sum[1] = fmaf(a, b.y, sum[1]);
  sum[2] = fmaf(a, b.z, sum[2]);
  sum[3] = fmaf(a, b.w, sum[3]);
}

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
template <typename T>
__device__ __forceinline__ T& LaunchedSharedMemory() {
  alignas(1024) extern __shared__ char launched[];
  return *reinterpret_cast<T*>(launched);
}

__device__ __forceinline__ void SyncThreads() { __syncthreads(); }

// ShowToHost: the host sees this lane's earlier stores before those of StoreForHost that follow it, also of other lanes
// if a barrier is between. StoreForHost: stores to page-locked memory that the host reads with acquire order.
__device__ __forceinline__ void ShowToHost() { __threadfence_system(); }
__device__ __forceinline__ void StoreForHost(uint32_t* word, uint32_t value) {
  *static_cast<volatile uint32_t*>(word) = value;
}

// TakeNumber: returns the counter's value and adds 1 to it; no two lanes get the same.
__device__ __forceinline__ uint32_t TakeNumber(uint32_t* counter) { return atomicAdd(counter, 1u); }
// ArriveAt: TakeNumber of a block that has shown its stores (ShowToBlocks, and a barrier). Afterwards this lane, and
// those behind a barrier, LoadFromBlocks what the blocks with lower numbers have shown.
__device__ __forceinline__ uint32_t ArriveAt(uint32_t* counter) {
  const uint32_t number = TakeNumber(counter);
  SeeBlocks();
  return number;
}
// Waits until the word has this value, which a block that runs already will store by StoreForBlocks. `seen`: what a
// PeekAt returned. Afterwards this lane, and those behind a barrier, LoadFromBlocks what was shown before.
__device__ __forceinline__ void AwaitBlocks(const uint32_t* word, uint32_t value, uint32_t seen) {
  while (seen != value) seen = PeekAt(word);
  SeeBlocks();
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
  if (blocks.lds_bytes > size_t{kStaticLdsBytes}) {
    static_cast<void>(GDN_GPU_API(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                                                    GDN_GPU_API(FuncAttributeMaxDynamicSharedMemorySize),
                                                    static_cast<int>(blocks.lds_bytes)));  // the launch reports it
  }
  if (blocks.early && stream.overlaps) {
    LaunchEarly(kernel, grid, threads, blocks.lds_bytes, handle, args...);
  } else {
    kernel<<<grid, threads, blocks.lds_bytes, handle>>>(args...);
  }
  return RuntimeStatus(static_cast<int>(GDN_GPU_API(GetLastError)()), name);
}

}  // namespace gdn::gpu
