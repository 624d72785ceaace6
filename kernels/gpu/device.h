// The interface between device code and its compiler: hipcc for AMD (the product), nvcc for NVIDIA (to run and time the
// same sources on such a card), or g++ with the SIMT executor of on_host/ (to run them in any CI). The only file with a
// vendor `#if`.
//
// Names that a *_gpu.hip file may use besides C++17 and the spellings common to CUDA and HIP (__global__, __device__,
// __launch_bounds__, threadIdx, blockIdx, blockDim, gridDim):
//   LDS          struct Shared { LdsArray<float, 256> tile; };  Shared& s = SharedMemory<Shared>();
//                or, for more than kStaticLdsBytes, LaunchedSharedMemory<Shared>() of a launch with
//                Grid::lds_bytes = sizeof(Shared)
//   copies       CopyAsync16, CommitCopies, WaitForCopies: from memory to LDS where Stream::matrix_units is set
//   barriers     SyncThreads() for the block, WaveBarrier() for the wave's LDS accesses; ShowToHost and StoreForHost
//   blocks       TakeNumber, ArriveAt, PeekAt, AwaitBlocks, LoadFromBlocks, ShowToBlocks, StoreForBlocks, for blocks
//                that hand work on to each other by words of Stream::counters
//   cross-lane   wave.h: GroupSum, GroupReduce, ... ; vendor_*.h has the primitives they are made of
//   vectors      Vec4, Load4, Store4 (16 bytes at once; vec4.h), FmaEach (four multiply-adds)
//   bytes        BiasedByte, SelectBytes, Dot4, WidenE4M3
//   fp16         FromF16, ToF16, HalvesOf, SubtractHalves; Dot2, once the device has proven what it does (dot2_probe.h)
//   matrices     MmaBf16, MmaTf32, ToTf32, LoadMatrices, where Stream::matrix_units is set
//   launching    launch.h
//   registers    FenceLoads, NotHoisted, OfWave: what the compiler may not move
//   overlapping  if Grid::early is set: WaitForPriorKernels(), and LetNextKernelBegin() to let the next kernel start;
//                BeginEarly() does both
// Every lane of the block must reach each barrier, and every lane of the wave each cross-lane call. So trip counts
// around them are uniform, lanes without work take part with a neutral value, and no lane returns earlier.
// Multiply-adds are written as fmaf(), and the compilers may not fuse others. So a token's bits do not depend on which
// of several copies of a loop computed it.
#pragma once

#include <cstdint>

#if defined(GDN_GPU_ON_HOST)
#include "kernels/gpu/on_host/simt.h"
#elif defined(__HIPCC__)
#include "kernels/gpu/vendor_hip.h"
#include "kernels/gpu/vendor_shared.h"
#elif defined(__CUDACC__)
#include "kernels/gpu/vendor_cuda.h"
#include "kernels/gpu/vendor_shared.h"
#else
#error "device.h is for files compiled by hipcc, by nvcc, or with GDN_GPU_ON_HOST"
#endif

namespace gdn::gpu {

// Stores the elements of a vector to to[0 .. 3].
__device__ __forceinline__ void Unpack4(const Vec4& v, float* to) {
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

// Lets the next kernel begin, then waits until the results of earlier kernels are there. Call first in a kernel with
// Grid::early that can do nothing before.
__device__ __forceinline__ void BeginEarly() {
  LetNextKernelBegin();
  WaitForPriorKernels();
}

// Convert the bits of a bfloat16, which is the upper half of a float32, to float32 and back. ToBf16 rounds to nearest
// even; a NaN stays a NaN.
__device__ __forceinline__ float FromBf16(uint16_t bits) { return BitsToFloat(static_cast<uint32_t>(bits) << 16); }
__device__ __forceinline__ uint16_t ToBf16(float value) {
  const uint32_t bits = FloatToBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace gdn::gpu
