// Which lane a DPP or ds_swizzle pattern reads, by the "Vega" ISA's definition (data parallel primitives,
// DS_SWIZZLE_B32). The AMD compiler has the instructions; the other two builds compute the lane from here.
//
// Thread safety: pure functions, usable in device code as all constexpr functions are (nvcc: --expt-relaxed-constexpr).
//
//   static_assert(DppSource(kDppRowMirror, 3) == 12);
#pragma once

namespace gdn::gpu {

// dpp_ctrl values. kDppQuadPerm: which lane of its quad each of the four lanes reads.
constexpr int DppQuadPerm(int a, int b, int c, int d) { return a | (b << 2) | (c << 4) | (d << 6); }
constexpr int DppRowShl(int n) { return 0x100 | n; }  // lane i reads i + n of its row of 16
constexpr int DppRowShr(int n) { return 0x110 | n; }  // lane i reads i - n of its row of 16
constexpr int DppRowRor(int n) { return 0x120 | n; }  // lane i reads (i - n) mod 16 of its row
inline constexpr int kDppRowMirror = 0x140;           // 15 - i of the row
inline constexpr int kDppRowHalfMirror = 0x141;       // 7 - i of the half row
inline constexpr int kDppRowBcast15 = 0x142;          // each row but the first reads lane 15 of the row before
inline constexpr int kDppRowBcast31 = 0x143;          // rows 2 and 3 read lane 31

// The lane that `lane` of a wave of `width` reads, or -1 where the pattern has none.
constexpr int DppSource(int ctrl, int lane, int width) {
  const int row = lane & ~15;
  const int in_row = lane & 15;
  if (ctrl <= 0xff) return (lane & ~3) | ((ctrl >> (2 * (lane & 3))) & 3);
  const int n = ctrl & 15;
  if (ctrl >= 0x101 && ctrl <= 0x10f) return in_row + n <= 15 ? row + in_row + n : -1;
  if (ctrl >= 0x111 && ctrl <= 0x11f) return in_row - n >= 0 ? row + in_row - n : -1;
  if (ctrl >= 0x121 && ctrl <= 0x12f) return row + ((in_row - n) & 15);
  if (ctrl == kDppRowMirror) return row + 15 - in_row;
  if (ctrl == kDppRowHalfMirror) return (lane & ~7) + 7 - (lane & 7);
  if (ctrl == kDppRowBcast15) return row - 1;
  if (ctrl == kDppRowBcast31) return lane >= 32 ? 31 : -1;
  return -1;
}

// Where lane i reads lane i ^ mask, the mask; 0 elsewhere.
constexpr int DppXorMask(int ctrl) {
  if (ctrl == kDppRowMirror) return 15;
  if (ctrl == kDppRowHalfMirror) return 7;
  const int mask = ctrl & 3;  // what lane 0 of a quad reads
  return ctrl == DppQuadPerm(mask, 1 ^ mask, 2 ^ mask, 3 ^ mask) ? mask : 0;
}

// ds_swizzle's bit-mask mode, within groups of 32 lanes: ((i & and) | or) ^ xor.
constexpr int SwizzlePattern(int and_mask, int or_mask, int xor_mask) {
  return and_mask | (or_mask << 5) | (xor_mask << 10);
}
constexpr int SwizzleSource(int pattern, int lane) {
  if (pattern & 0x8000) return (lane & ~3) | ((pattern >> (2 * (lane & 3))) & 3);
  const int in_group = (((lane & 31) & (pattern & 31)) | ((pattern >> 5) & 31)) ^ ((pattern >> 10) & 31);
  return (lane & ~31) + in_group;
}

}  // namespace gdn::gpu
