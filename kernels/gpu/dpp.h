// The lane that a DPP or ds_swizzle pattern reads, as the "Vega" ISA defines it (data parallel primitives,
// DS_SWIZZLE_B32). The AMD compiler has the instructions; the other two builds compute the lane with these functions.
//
// Thread safety: pure constexpr functions, usable in device code (nvcc: --expt-relaxed-constexpr).
//
//   static_assert(DppSource(kDppRowMirror, 3) == 12);
#pragma once

namespace gdn::gpu {

// dpp_ctrl values. DppQuadPerm: lanes 0 .. 3 of each quad read lanes a, b, c and d (0 .. 3) of their quad.
constexpr int DppQuadPerm(int a, int b, int c, int d) { return a | (b << 2) | (c << 4) | (d << 6); }
inline constexpr int kDppRowMirror = 0x140;      // lane i of a row of 16 reads lane 15 - i
inline constexpr int kDppRowHalfMirror = 0x141;  // lane i of a half row reads lane 7 - i

// Returns the lane of the wave that `lane` reads with the pattern `ctrl`, one of those above.
constexpr int DppSource(int ctrl, int lane) {
  if (ctrl == kDppRowMirror) return (lane & ~15) + 15 - (lane & 15);
  if (ctrl == kDppRowHalfMirror) return (lane & ~7) + 7 - (lane & 7);
  return (lane & ~3) | ((ctrl >> (2 * (lane & 3))) & 3);
}

// Returns the mask if every lane i reads lane i ^ mask with the pattern `ctrl`; 0 for other patterns.
constexpr int DppXorMask(int ctrl) {
  if (ctrl == kDppRowMirror) return 15;
  if (ctrl == kDppRowHalfMirror) return 7;
  const int mask = ctrl & 3;  // the lane that lane 0 of a quad reads
  return ctrl == DppQuadPerm(mask, 1 ^ mask, 2 ^ mask, 3 ^ mask) ? mask : 0;
}

// ds_swizzle's bit-mask mode, within groups of 32 lanes: lane i reads lane ((i & and) | or) ^ xor; masks have 5 bits.
// SwizzlePattern returns the pattern, SwizzleSource the lane of the wave that `lane` reads with it.
constexpr int SwizzlePattern(int and_mask, int or_mask, int xor_mask) {
  return and_mask | (or_mask << 5) | (xor_mask << 10);
}
constexpr int SwizzleSource(int pattern, int lane) {
  const int in_group = (((lane & 31) & (pattern & 31)) | ((pattern >> 5) & 31)) ^ ((pattern >> 10) & 31);
  return (lane & ~31) + in_group;
}

}  // namespace gdn::gpu
