// Device code: products of bfloat16 tiles in LDS on matrix units, by four waves together.
//
// A tile has rows of kTileFeatures elements, 128 bytes each. A row's 16 bytes number i lie at number i ^ row % 8, so
// that neither copies of rows nor reads of columns meet in a bank: TilePartAt. A tile begins at a multiple of 1,024
// bytes of the block's LDS.
// A lane that has copied to it (CopyAsync16) calls ShowCopiesToTileUnits after WaitForCopies, then comes a barrier.
// Thread safety: all lanes of the four waves make the same calls. The waves' first number is a multiple of four.
//
//   float d[kBs][4];
//   MmaTileBf16<kWave>(d, s.tiles, a, b, /*add=*/false);
//   WaitForTile(d);
#pragma once

#include <cstdint>

#include "kernels/gpu/device.h"

namespace gdn::gpu {

inline constexpr int kTileFeatures = 64;
inline constexpr int kTileParts = kTileFeatures / 8;  // of 16 bytes, in a row
inline constexpr int kTilePartFloats = 4;
inline constexpr int kTileRowFloats = kTileParts * kTilePartFloats;

// Returns the index of a row's 16 bytes number `part`, in floats from the tile's start.
__device__ __forceinline__ int TilePartAt(uint32_t row, uint32_t part) {
  return static_cast<int>(row * kTileRowFloats + (part ^ row % kTileParts) * kTilePartFloats);
}

// MmaTileBf16 with one MmaBf16 for each 16 x 8 results and 16 features.
template <int kWave, int kBs, typename Lds>
__device__ __forceinline__ void MmaTileByWaves(float (&d)[kBs][4], Lds& lds, int a, int b, bool add) {
  const int lane = static_cast<int>(threadIdx.x) % kWave;
  const int row = static_cast<int>(threadIdx.x) / kWave % 4 * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < kBs; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) d[j][k] = add ? d[j][k] : 0.0f;
  }
#pragma unroll
  for (int part = 0; part < kTileParts; part += 2) {
    uint32_t of_a[4];
    LoadMatrices<kWave>(lds, a + TilePartAt(row, part + lane / 16), of_a);
#pragma unroll
    for (int j = 0; j < kBs; j += 2) {
      uint32_t of_b[4];
      LoadMatrices<kWave>(lds, b + TilePartAt(j * 8 + lane / 16 * 8 + lane % 8, part + lane / 8 % 2), of_b);
      MmaBf16<kWave>(d[j], of_a, {of_b[0], of_b[1]});
      MmaBf16<kWave>(d[j + 1], of_a, {of_b[2], of_b[3]});
    }
  }
}

// D += A B^T, or D = A B^T if not `add`: A is the tile of 64 rows from index `a` of `lds` on, B that of 8 kBs rows from
// `b` on. Wave w of the four has rows 16 w to 16 w + 15 of D; d[j] are its columns 8 j to 8 j + 7, as MmaBf16 has them.
// 16 features at a time are added, by the rules of MmaBf16. d must not be used before WaitForTile, except for the next
// MmaTileBf16.
template <int kWave, int kBs, typename Lds>
__device__ __forceinline__ void MmaTileBf16(float (&d)[kBs][4], Lds& lds, int a, int b, bool add) {
  if constexpr (kHasTileUnits) {
    IssueTile(d, &lds[a], &lds[b], add);
  } else {
    MmaTileByWaves<kWave>(d, lds, a, b, add);
  }
}
template <int kBs>
__device__ __forceinline__ void WaitForTile(float (&d)[kBs][4]) {
  if constexpr (kHasTileUnits) WaitForIssuedTile(d);
}

}  // namespace gdn::gpu
