// device.h's part for AMD. Included by device.h only; see there for what each function does.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/gpu/dpp.h"
#include "kernels/gpu/e4m3_bits.h"

// The runtime's functions, types and constants: GDN_GPU_API(Malloc) is hipMalloc.
#define GDN_GPU_API(name) hip##name
#define GDN_GPU_VENDOR "hip"

namespace gdn::gpu {

inline constexpr int kStaticLdsBytes = 64 * 1024;  // most LDS that a kernel may declare

// Wave widths that kernels are compiled for.
using WaveWidths = std::integer_sequence<int, 64>;

__device__ __forceinline__ float FromF16(uint16_t bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
__device__ __forceinline__ uint16_t ToF16(float value) {
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
}

// BiasedByte: kByteBias + byte number kByte (0 lowest) of a word, as float. WidenE4M3: the values of four E4M3 bytes,
// the lowest first, divided by kE4M3Unit. If any of them is NaN, at least one result is NaN, maybe another byte's.
inline constexpr float kByteBias = 0.0f;
inline constexpr float kE4M3Unit = 256.0f;
template <int kByte>
__device__ __forceinline__ float BiasedByte(uint32_t word) {
  return static_cast<float>((word >> (8 * kByte)) & 0xffu);  // v_cvt_f32_ubyte
}
// SelectBytes: the word whose byte i is byte number `selectors` byte i, 0 to 7, of the eight bytes of `low` and `high`,
// low's lowest byte first.
__device__ __forceinline__ uint32_t SelectBytes(uint32_t low, uint32_t high, uint32_t selectors) {
  return __builtin_amdgcn_perm(high, low, selectors);
}
// Dot4: c plus the products of the words' four bytes, each as a signed number, with the byte of the same place.
__device__ __forceinline__ int32_t Dot4(uint32_t a, uint32_t b, int32_t c) {
  return __builtin_amdgcn_sdot4(static_cast<int>(a), static_cast<int>(b), c, /*clamp=*/false);
}
// Dot2: c plus the products of the words' low and of their high fp16 numbers. How it rounds and what it flushes is the
// device's, one of dot2.h's variants.
// HalvesOf: the fp16 numbers nearest to `low` and `high` times a power of two; `low` is in the word's low half.
using HalfPair = _Float16 __attribute__((ext_vector_type(2)));
__device__ __forceinline__ float Dot2(uint32_t a, uint32_t b, float c) {
  return __builtin_amdgcn_fdot2(__builtin_bit_cast(HalfPair, a), __builtin_bit_cast(HalfPair, b), c, /*clamp=*/false);
}
__device__ __forceinline__ uint32_t HalvesOf(float low, float high, float scale) {
  return __builtin_bit_cast(uint32_t,
                            HalfPair{static_cast<_Float16>(low * scale), static_cast<_Float16>(high * scale)});
}
// SubtractHalves: the differences of the words' low and of their high fp16 numbers, rounded.
__device__ __forceinline__ uint32_t SubtractHalves(uint32_t a, uint32_t b) {
  return __builtin_bit_cast(uint32_t, __builtin_bit_cast(HalfPair, a) - __builtin_bit_cast(HalfPair, b));
}
__device__ __forceinline__ void WidenE4M3(uint32_t word, float (&values)[4]) {
  const uint32_t even = E4M3EvenHalves(word);
  const uint32_t odd = E4M3OddHalves(word);
  values[0] = HasE4M3NaN(word) ? __uint_as_float(0x7fc00000u) : FromF16(static_cast<uint16_t>(even));
  values[1] = FromF16(static_cast<uint16_t>(odd));
  values[2] = FromF16(static_cast<uint16_t>(even >> 16));
  values[3] = FromF16(static_cast<uint16_t>(odd >> 16));
}

// gfx906 has no matrix units. What calls these is never instantiated for waves of 64.
template <int kWave>
__device__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <int kWave>
__device__ void MmaTf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
__device__ uint32_t ToTf32(float value);
inline bool HasMatrixUnits(const hipDeviceProp_t& /*properties*/) { return false; }
template <int kWave, typename Lds>
__device__ void LoadMatrices(Lds& lds, int at, uint32_t (&words)[4]);
inline constexpr bool kHasTileUnits = false;
template <int kBs>
__device__ void IssueTile(float (&d)[kBs][4], const void* a, const void* b, bool add);
template <int kBs>
__device__ void WaitForIssuedTile(float (&d)[kBs][4]);
__device__ void ShowCopiesToTileUnits();
template <typename Array>
__device__ void CopyAsync16(Array& to, int at, const float* from, bool valid = true);
__device__ void CommitCopies();
template <int kNewest>
__device__ void WaitForCopies();

// ShowToBlocks: this lane's earlier stores are there for other blocks that see what StoreForBlocks stores later, on
// this lane or behind a barrier. PeekAt and LoadFromBlocks load what other blocks have stored, past this processor's
// cache.
__device__ __forceinline__ void ShowToBlocks() { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent"); }
__device__ __forceinline__ void StoreForBlocks(uint32_t* word, uint32_t value) {
  __hip_atomic_store(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ __forceinline__ uint32_t PeekAt(const uint32_t* word) {
  return __hip_atomic_load(word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ __forceinline__ void SeeBlocks() { __builtin_amdgcn_sched_barrier(0); }  // a barrier is behind it
__device__ __forceinline__ float LoadFromBlocks(const float* p) {
  return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// FenceLoads: keeps the compiler from moving loads over this place, to bound the registers that they take; no
// instruction. NotHoisted: returns the value; what is computed from it is computed anew at each call, and takes no
// register between calls in a loop. OfWave: returns a number that all lanes of the wave have; what is computed from it
// takes no vector instructions, if the device has others.
__device__ __forceinline__ void FenceLoads() { __builtin_amdgcn_sched_barrier(0); }
__device__ __forceinline__ uint32_t NotHoisted(uint32_t value) {
  asm volatile("" : "+v"(value));
  return value;
}
__device__ __forceinline__ int32_t OfWave(int32_t value) { return __builtin_amdgcn_readfirstlane(value); }

// Orders a wave's own LDS accesses. Its lanes run in lockstep, so this only restrains the compiler.
__device__ __forceinline__ void WaveBarrier() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

// Kernels do not overlap: a kernel begins when the one before it has ended. So these do nothing, and LaunchEarly is a
// plain launch.
__device__ __forceinline__ void WaitForPriorKernels() {}
__device__ __forceinline__ void LetNextKernelBegin() {}
inline bool OverlapsKernels(int /*device*/) { return false; }
template <typename... Params, typename... Args>
void LaunchEarly(void (*kernel)(Params...), dim3 grid, int threads, size_t lds_bytes, hipStream_t stream,
                 const Args&... args) {
  kernel<<<grid, threads, lds_bytes, stream>>>(args...);
}

// Cross-lane moves of 32-bit values; all lanes of the wave call, and each gets the value of the lane that kCtrl or
// kPattern, patterns of dpp.h, name for it. Every lane reads some lane, so `old` is never returned.
template <int kWave, int kCtrl>
__device__ __forceinline__ float UpdateDpp(float old, float source) {
  return __int_as_float(__builtin_amdgcn_update_dpp(__float_as_int(old), __float_as_int(source), kCtrl,
                                                    /*row_mask=*/0xf, /*bank_mask=*/0xf, /*bound_ctrl=*/false));
}
template <int kWave, int kPattern>
__device__ __forceinline__ float DsSwizzle(float value) {
  return __int_as_float(__builtin_amdgcn_ds_swizzle(__float_as_int(value), kPattern));
}
// Returns the value of lane `lane` of the wave, which may differ from lane to lane. All lanes of the wave call.
template <int kWave>
__device__ __forceinline__ float Bpermute(int lane, float value) {
  return __int_as_float(__builtin_amdgcn_ds_bpermute(lane << 2, __float_as_int(value)));
}

// Names that differ between the CUDA and HIP runtimes; Api functions return the runtime's error code.
using ApiDeviceProperties = hipDeviceProp_t;
inline constexpr auto kErrorOutOfMemory = hipErrorOutOfMemory;
inline constexpr auto kClockRateAttribute = hipDeviceAttributeClockRate;
inline constexpr auto kMemoryClockRateAttribute = hipDeviceAttributeMemoryClockRate;
inline std::string ToolkitName() {
  std::string name = "hip";
  for (const int part : {HIP_VERSION_MAJOR, HIP_VERSION_MINOR, HIP_VERSION_PATCH}) name += std::to_string(part) + ".";
  name.back() = '-';
  return name + "clang" + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__);
}
inline std::string ArchitectureName(const ApiDeviceProperties& properties) { return properties.gcnArchName; }
inline hipError_t ApiHostAlloc(void** data, size_t bytes) {
  return hipHostMalloc(data, bytes, hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent);
}
inline hipError_t ApiFreeHost(void* data) { return hipHostFree(data); }
inline hipError_t ApiInstantiate(hipGraphExec_t* executable, hipGraph_t graph) {
  return hipGraphInstantiate(executable, graph, nullptr, nullptr, 0);
}

}  // namespace gdn::gpu
