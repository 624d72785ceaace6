// vendor_cuda.h's part for matrix units that read LDS themselves: wgmma, of compute capability 9.0a. Included by
// vendor_cuda.h only.
#pragma once

#include <cstdint>

namespace gdn::gpu {

// True in code for devices that have them.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kHasTileUnits = true;
#else
inline constexpr bool kHasTileUnits = false;
#endif

// D += A B^T of 16 features, or D = A B^T if not `add`: A and B as descriptors of LDS.
template <int kBs>
__device__ void TileProduct(float (&d)[kBs][4], uint64_t a, uint64_t b, bool add);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <>
__device__ __forceinline__ void TileProduct<2>(float (&d)[2][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7"
      "}, %8, %9, p, 1, 1, 0, 0; }"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3])
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
template <>
__device__ __forceinline__ void TileProduct<4>(float (&d)[4][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, p, 1, 1, 0, 0; }"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
        "+f"(d[3][2]), "+f"(d[3][3])
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
template <>
__device__ __forceinline__ void TileProduct<8>(float (&d)[8][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 0, 0; }"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
        "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
        "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
template <>
__device__ __forceinline__ void TileProduct<16>(float (&d)[16][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0; }"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
        "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
        "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]),
        "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
        "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]),
        "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]),
        "+f"(d[15][3])
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}
#endif

// A tile's descriptor: rows of 128 bytes in the order of MmaTileBf16.
__device__ __forceinline__ uint64_t TileDescriptor(const void* tile) {
  constexpr uint64_t kEightRows = 8 * 128 / 16;
  constexpr uint64_t kSwapped128Bytes = 1;
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{1} << 16 | kEightRows << 32 | kSwapped128Bytes << 62;
}

// Shows the lane's copies that have arrived (WaitForCopies) to the tile units. Call it before the barrier.
__device__ __forceinline__ void ShowCopiesToTileUnits() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("fence.proxy.async.shared::cta;" : : : "memory");))
}

// MmaTileBf16 and WaitForTile of mma_tile.h where kHasTileUnits.
template <int kBs>
__device__ __forceinline__ void IssueTile(float (&d)[kBs][4], const void* a, const void* b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const uint64_t of_a = TileDescriptor(a);
  const uint64_t of_b = TileDescriptor(b);
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) TileProduct<kBs>(d, of_a + 2 * i, of_b + 2 * i, add || i > 0);  // 32 bytes further
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
#endif
}
template <int kBs>
__device__ __forceinline__ void WaitForIssuedTile(float (&d)[kBs][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
#pragma unroll
  for (int j = 0; j < kBs; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) asm volatile("" : "+f"(d[j][k]) : : "memory");
  }
#endif
}

}  // namespace gdn::gpu
