// device.h's part for NVIDIA. Included by device.h only; see there for what each function does.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <nv/target>

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/gpu/dpp.h"
#include "kernels/gpu/vendor_cuda_tiles.h"

// The runtime's functions, types and constants: GDN_GPU_API(Malloc) is cudaMalloc.
#define GDN_GPU_API(name) cuda##name
#define GDN_GPU_VENDOR "cuda"

namespace gdn::gpu {

inline constexpr int kStaticLdsBytes = 48 * 1024;  // most LDS that a kernel may declare; gfx906 has 64 KiB

// Wave widths that kernels are compiled for.
using WaveWidths = std::integer_sequence<int, 32>;

__device__ __forceinline__ float FromF16(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ uint16_t ToF16(float value) { return __half_as_ushort(__float2half_rn(value)); }

// BiasedByte: kByteBias + byte number kByte (0 lowest) of a word, as float. WidenE4M3: the values of four E4M3 bytes,
// the lowest first, divided by kE4M3Unit. If any of them is NaN, at least one result is NaN, maybe another byte's.
inline constexpr float kByteBias = 32768.0f;  // putting the byte into a mantissa is faster than a conversion
inline constexpr float kE4M3Unit = 1.0f;
template <int kByte>
__device__ __forceinline__ float BiasedByte(uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x47000000u, 0x7404u | kByte << 4));
}
// SelectBytes: the word whose byte i is byte number `selectors` byte i, 0 to 7, of the eight bytes of `low` and `high`,
// low's lowest byte first.
__device__ __forceinline__ uint32_t SelectBytes(uint32_t low, uint32_t high, uint32_t selectors) {
  const uint32_t pairs = selectors | selectors >> 4;  // the instruction takes four bits a byte
  return __byte_perm(low, high, (pairs & 0xffu) | (pairs >> 8 & 0xff00u));
}
// Dot4: c plus the products of the words' four bytes, each as a signed number, with the byte of the same place.
__device__ __forceinline__ int32_t Dot4(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
// Dot2: c plus the products of the words' low and of their high fp16 numbers, rounded after each, as
// Dot2Rounding::kLowFirst does.
// HalvesOf: the fp16 numbers nearest to `low` and `high` times a power of two; `low` is in the word's low half.
__device__ __forceinline__ float Dot2(uint32_t a, uint32_t b, float c) {
  const float low = fmaf(FromF16(static_cast<uint16_t>(a)), FromF16(static_cast<uint16_t>(b)), c);
  return fmaf(FromF16(static_cast<uint16_t>(a >> 16)), FromF16(static_cast<uint16_t>(b >> 16)), low);
}
__device__ __forceinline__ uint32_t HalvesOf(float low, float high, float scale) {
  return ToF16(low * scale) | static_cast<uint32_t>(ToF16(high * scale)) << 16;
}
// SubtractHalves: the differences of the words' low and of their high fp16 numbers, rounded.
__device__ __forceinline__ uint32_t SubtractHalves(uint32_t a, uint32_t b) {
  uint32_t difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}
__device__ __forceinline__ void WidenE4M3(uint32_t word, float (&values)[4]) {
  const __half2 low = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word), __NV_E4M3);
  const __half2 high = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word >> 16), __NV_E4M3);
  values[0] = __low2float(low);
  values[1] = __high2float(low);
  values[2] = __low2float(high);
  values[3] = __high2float(high);
}

// Matrix units, where Stream::matrix_units is set: D += A B, D with 16 x 8 elements. All 32 lanes call, each with its
// part of the matrices; lane l has g = l / 4 and q = l % 4.
//   d[0], d[1]: D[g][2 q], D[g][2 q + 1]; d[2], d[3]: the same of row g + 8.
//   MmaBf16, A 16 x 16, B 16 x 8, two bfloat16 a word, the lower column of A (row of B) in the lower half:
//     a[0], a[1]: A[g], A[g + 8] at columns 2 q and 2 q + 1; a[2], a[3]: at columns 2 q + 8 and 2 q + 9.
//     b[0], b[1]: B at rows 2 q and 2 q + 1, 2 q + 8 and 2 q + 9, of column g.
//   MmaTf32, A 16 x 8, B 8 x 8, a number of ToTf32 a word:
//     a[0], a[1]: A[g], A[g + 8] at column q; a[2], a[3]: at column q + 4.  b[0], b[1]: B at rows q, q + 4 of column g.
// Products are exact; their sum with D's element is truncated, not rounded, at a place that the device chooses.
// ToTf32 rounds to TF32's 11 significant bits (nearest, ties away from zero); the bits are those of a float.
template <int kWave>
__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(kWave == 32);
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <int kWave>
__device__ __forceinline__ void MmaTf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(kWave == 32);
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ uint32_t ToTf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}
// Kernels with matrix units have up to this much LDS a block.
inline constexpr int kMostLdsBytes = 227 * 1024;
inline bool HasMatrixUnits(const cudaDeviceProp& properties) {
  return properties.major >= 8 && properties.sharedMemPerBlockOptin >= kMostLdsBytes;
}

// LoadMatrices: loads four 8 x 8 matrices of 16-bit elements from LDS. Lane l's `at` is the index of the 16 bytes that
// hold row l % 8 of matrix l / 8. It gets, as words[i], elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i.
// All lanes call.
template <int kWave, typename Lds>
__device__ __forceinline__ void LoadMatrices(Lds& lds, int at, uint32_t (&words)[4]) {
  static_assert(kWave == 32);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&lds[at]))));
}

// Copies of 16 bytes from device memory to LDS that do not wait. CopyAsync16 copies `from`, 4 floats, to elements `at`
// to at + 3 of `to`, both 16-byte aligned; zeros if not `valid`, and then `from` is not read. CommitCopies ends a group
// of a lane's copies. WaitForCopies waits for the lane's groups, all but the kNewest latest; barriers do the rest.
template <typename Array>
__device__ __forceinline__ void CopyAsync16(Array& to, int at, const float* from, bool valid = true) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(&to.data[at]));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kNewest>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

// As vendor_hip.h says.
__device__ __forceinline__ void ShowToBlocks() { __threadfence(); }
__device__ __forceinline__ void StoreForBlocks(uint32_t* word, uint32_t value) {
  *static_cast<volatile uint32_t*>(word) = value;
}
__device__ __forceinline__ uint32_t PeekAt(const uint32_t* word) {
  return *static_cast<const volatile uint32_t*>(word);
}
__device__ __forceinline__ void SeeBlocks() { __threadfence(); }
__device__ __forceinline__ float LoadFromBlocks(const float* p) { return __ldcg(p); }

// FenceLoads: keeps the compiler from moving loads over this place, to bound the registers that they take; no
// instruction. NotHoisted: returns the value; what is computed from it is computed anew at each call, and takes no
// register between calls in a loop. OfWave: returns a number that all lanes of the wave have; what is computed from it
// takes no vector instructions, if the device has others.
__device__ __forceinline__ void FenceLoads() { asm volatile("" ::: "memory"); }
__device__ __forceinline__ uint32_t NotHoisted(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ int32_t OfWave(int32_t value) { return value; }

__device__ __forceinline__ void WaveBarrier() { __syncwarp(); }

// WaitForPriorKernels waits until the stream's earlier kernels have ended; LetNextKernelBegin lets the next one begin
// once all blocks have called it. By programmatic dependent launch (compute capability 9.0 and later); no-ops before.
__device__ __forceinline__ void WaitForPriorKernels() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (cudaGridDependencySynchronize();))
}
__device__ __forceinline__ void LetNextKernelBegin() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (cudaTriggerProgrammaticLaunchCompletion();))
}
inline bool OverlapsKernels(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}
// Launches a kernel that may begin before the previous one has ended. Reports nothing itself: the caller's GetLastError
// returns the errors.
template <typename... Params, typename... Args>
void LaunchEarly(void (*kernel)(Params...), dim3 grid, int threads, size_t lds_bytes, cudaStream_t stream,
                 const Args&... args) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = lds_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args...));
}

// The lane exchanges of AMD (dpp.h), made of shuffles; all 32 lanes must call. Each returns the value of the lane that
// the pattern, or `lane` modulo 32, names.
template <int kWave, int kCtrl>
__device__ __forceinline__ float UpdateDpp(float /*old*/, float source) {
  static_assert(kWave == 32, "an NVIDIA warp has 32 lanes");
  if constexpr (constexpr int kMask = DppXorMask(kCtrl); kMask != 0) {
    return __shfl_xor_sync(0xffffffffu, source, kMask);
  } else {
    return __shfl_sync(0xffffffffu, source, DppSource(kCtrl, threadIdx.x & 31));
  }
}
template <int kWave, int kPattern>
__device__ __forceinline__ float DsSwizzle(float value) {
  return __shfl_sync(0xffffffffu, value, SwizzleSource(kPattern, threadIdx.x & 31));
}
template <int kWave>
__device__ __forceinline__ float Bpermute(int lane, float value) {
  return __shfl_sync(0xffffffffu, value, lane & (kWave - 1));
}

// Names that differ between the CUDA and HIP runtimes; Api functions return the runtime's error code.
using ApiDeviceProperties = cudaDeviceProp;
inline constexpr auto kErrorOutOfMemory = cudaErrorMemoryAllocation;
inline constexpr auto kClockRateAttribute = cudaDevAttrClockRate;
inline constexpr auto kMemoryClockRateAttribute = cudaDevAttrMemoryClockRate;
inline std::string ToolkitName() {
  return "nvcc" + std::to_string(__CUDACC_VER_MAJOR__) + "." + std::to_string(__CUDACC_VER_MINOR__) + "." +
         std::to_string(__CUDACC_VER_BUILD__);
}
inline std::string ArchitectureName(const ApiDeviceProperties& properties) {
  return "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
}
inline cudaError_t ApiHostAlloc(void** data, size_t bytes) {
  return cudaHostAlloc(data, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
}
inline cudaError_t ApiFreeHost(void* data) { return cudaFreeHost(data); }
inline cudaError_t ApiInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
  return cudaGraphInstantiate(executable, graph, 0);
}

}  // namespace gdn::gpu
