// device.h for AMD. Included by device.h only, whose comment says what each part is for.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kernels/gpu/dpp.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/vec4.h"

// The runtime's functions, types and constants: GDN_GPU_API(Malloc) is hipMalloc.
#define GDN_GPU_API(name) hip##name
#define GDN_GPU_VENDOR "hip"

namespace gdn::gpu {

// What kernels are compiled for.
using WaveWidths = std::integer_sequence<int, 64>;

__device__ __forceinline__ float BitsToFloat(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t FloatToBits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float FromF16(uint16_t bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
__device__ __forceinline__ uint16_t ToF16(float value) {
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
}

__device__ __forceinline__ Vec4 Load4(const float* p) { return *reinterpret_cast<const Vec4*>(p); }
__device__ __forceinline__ void Store4(float* p, const Vec4& v) { *reinterpret_cast<Vec4*>(p) = v; }

// LDS of a block.
template <typename T, int kCount>
struct LdsArray {
  alignas(16) T data[kCount];
  __device__ __forceinline__ T& operator[](int i) { return data[i]; }
  __device__ __forceinline__ Vec4 Load4(int i) const { return *reinterpret_cast<const Vec4*>(&data[i]); }
  __device__ __forceinline__ void Store4(int i, const Vec4& v) { *reinterpret_cast<Vec4*>(&data[i]) = v; }
};

template <typename T>
__device__ __forceinline__ T& SharedMemory() {
  static_assert(sizeof(T) <= 64 * 1024, "a block has 64 KB of LDS");
  __shared__ T shared;
  return shared;
}

__device__ __forceinline__ void SyncThreads() { __syncthreads(); }
// Orders a wave's own LDS accesses; its lanes run in step, so only the compiler has to be told.
__device__ __forceinline__ void WaveBarrier() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

// Cross-lane moves of 32-bit values. kCtrl, masks and kBoundCtrl as the ISA has them; a lane without one keeps `old`.
template <int kWave, int kCtrl, int kRowMask = 0xf, int kBankMask = 0xf, bool kBoundCtrl = false>
__device__ __forceinline__ float UpdateDpp(float old, float source) {
  return __int_as_float(
      __builtin_amdgcn_update_dpp(__float_as_int(old), __float_as_int(source), kCtrl, kRowMask, kBankMask, kBoundCtrl));
}
template <int kWave, int kPattern>
__device__ __forceinline__ float DsSwizzle(float value) {
  return __int_as_float(__builtin_amdgcn_ds_swizzle(__float_as_int(value), kPattern));
}
// Every lane reads lane `lane` of the wave.
template <int kWave>
__device__ __forceinline__ float Bpermute(int lane, float value) {
  return __int_as_float(__builtin_amdgcn_ds_bpermute(lane << 2, __float_as_int(value)));
}
template <int kWave>
__device__ __forceinline__ uint64_t Ballot(bool predicate) {
  return __ballot(predicate);
}
// c + a.lo * b.lo + a.hi * b.hi of packed float16 pairs, summed in float32.
__device__ __forceinline__ float Fdot2(uint32_t a, uint32_t b, float c) {
  using Half2 = _Float16 __attribute__((ext_vector_type(2)));
  return __builtin_amdgcn_fdot2(__builtin_bit_cast(Half2, a), __builtin_bit_cast(Half2, b), c, false);
}

// Where the two runtimes spell a thing differently.
using ApiDeviceProperties = hipDeviceProp_t;
inline constexpr auto kErrorOutOfMemory = hipErrorOutOfMemory;
inline constexpr auto kClockRateAttribute = hipDeviceAttributeClockRate;
inline constexpr auto kMemoryClockRateAttribute = hipDeviceAttributeMemoryClockRate;
inline std::string ArchitectureName(const ApiDeviceProperties& properties) { return properties.gcnArchName; }
inline hipError_t ApiHostAlloc(void** data, size_t bytes) { return hipHostMalloc(data, bytes, hipHostMallocDefault); }
inline hipError_t ApiFreeHost(void* data) { return hipHostFree(data); }
inline hipError_t ApiInstantiate(hipGraphExec_t* executable, hipGraph_t graph) {
  return hipGraphInstantiate(executable, graph, nullptr, nullptr, 0);
}

template <typename... Params, typename... Args>
absl::Status LaunchKernel(const char* name, void (*kernel)(Params...), int64_t x, int64_t y, int64_t z, int threads,
                          const Stream& stream, const Args&... args) {
  const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
  kernel<<<grid, threads, 0, static_cast<hipStream_t>(stream.handle)>>>(args...);
  return RuntimeStatus(static_cast<int>(hipGetLastError()), name);
}

}  // namespace gdn::gpu
