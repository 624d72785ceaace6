// Storage formats of weight matrices in files and in memory, and conversion of their elements to float32.
//
// Plain formats store one element of base/dtype.h after another. The others are quantised. GGUF's formats have blocks
// of neighbouring weights of a row, byte for byte as in the file; d and m are float16, q, s and t integers:
//   Q8_0    32 weights, 34 bytes:    d, 32 int8 q                             w = d q
//   Q4_0    32 weights, 18 bytes:    d, 16 bytes of 4-bit q                   w = d (q - 8); the low halves come first
//   Q4_1    32 weights, 20 bytes:    d, m, 4-bit q as Q4_0                    w = d q + m
//   Q5_0    32 weights, 22 bytes:    d, 32 fifth bits, 4-bit q as Q4_0        w = d (q - 16)
//   Q5_1    32 weights, 24 bytes:    d, m, 32 fifth bits, 4-bit q as Q4_0     w = d q + m
//   IQ4_NL  32 weights, 18 bytes:    as Q4_0                                  w = d kIq4Values[q]
//   Q2_K    256 weights, 84 bytes:   16 pairs of 4-bit (s, t), 2-bit q, d, m  w = d s q - m t, a pair for 16 weights
//   Q3_K    256 weights, 110 bytes:  256 third bits, 2-bit q, 16 6-bit s, d   w = d (s - 32) (q - 4)
//   Q4_K    256 weights, 144 bytes:  d, m, 8 pairs of 6-bit (s, t), 4-bit q   w = d s q - m t, a pair for 32 weights
//   Q5_K    256 weights, 176 bytes:  as Q4_K, with a fifth bit of q
//   Q6_K    256 weights, 210 bytes:  6-bit q, 16 int8 s, d                    w = d s (q - 32), an s for 16 weights
//   IQ4_XS  256 weights, 136 bytes:  d, 8 6-bit s, 4-bit q                    w = d (s - 32) kIq4Values[q]
//   IQ3_S   256 weights, 110 bytes:  d, 64 9-bit q, 256 signs, 8 4-bit s      w = +-d (1 + 2 s) v, with v of four
//           neighbours in iq3s_grid.h by their q
// In float32 the products are exact and only a sum with m is rounded, so FMA gives the same bits.
//   F8_E4M3  a byte a weight, and float32 scales beside them, one for each 128 rows x 128 columns; edge blocks may be
//            partial                                                          w = e4m3 * scale, rounded
// E4M3 (the FN kind): a sign, 4 exponent bits of bias 7, 3 mantissa bits; largest 448; 0x7f and 0xff are NaN; no
// infinity.
// A row is its blocks one after another, without padding.
// Thread safety: free functions on the caller's memory. Ownership: none.
// Sources: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml/src/ggml-common.h;
// https://arxiv.org/abs/2209.05433
//
//   const int64_t bytes = rows * RowBytes(WeightFormat::kQ4_K, cols);
//   std::vector<float> row(cols);
//   DequantizeRow(WeightFormat::kQ4_K, data + i * RowBytes(WeightFormat::kQ4_K, cols), nullptr, cols, row.data());
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace gdn {

enum class WeightFormat : uint8_t {
  kF32 = 1,  // plain formats have the values of DType
  kF16 = 2,
  kBF16 = 3,
  kF8E4M3 = 4,
  kQ8_0 = 5,
  kQ4_0 = 6,
  kQ4_K = 7,
  kQ5_K = 8,
  kQ6_K = 9,
  kQ4_1 = 10,
  kQ5_0 = 11,
  kQ5_1 = 12,
  kIQ4_NL = 13,
  kQ2_K = 14,
  kQ3_K = 15,
  kIQ4_XS = 16,
  kIQ3_S = 17,
};

inline constexpr WeightFormat kWeightFormats[] = {
    WeightFormat::kF32,    WeightFormat::kF16,  WeightFormat::kBF16,   WeightFormat::kF8E4M3, WeightFormat::kQ8_0,
    WeightFormat::kQ4_0,   WeightFormat::kQ4_K, WeightFormat::kQ5_K,   WeightFormat::kQ6_K,   WeightFormat::kQ4_1,
    WeightFormat::kQ5_0,   WeightFormat::kQ5_1, WeightFormat::kIQ4_NL, WeightFormat::kQ2_K,   WeightFormat::kQ3_K,
    WeightFormat::kIQ4_XS, WeightFormat::kIQ3_S};

// Returns the name in its file format, such as "F32", "F8_E4M3" or "Q4_K".
std::string_view WeightFormatName(WeightFormat format);

constexpr bool IsPlain(WeightFormat format) { return format <= WeightFormat::kBF16; }
constexpr WeightFormat FormatOf(DType dtype) { return static_cast<WeightFormat>(dtype); }
// Returns the type of a single weight as kernels read it: the dtype of a plain format, F32 for a quantised one.
constexpr DType WidenedDType(WeightFormat format) { return IsPlain(format) ? static_cast<DType>(format) : DType::kF32; }

// A block: `weights` neighbouring weights of a row in `bytes` bytes. A row has whole blocks.
struct WeightBlock {
  int64_t weights;
  int64_t bytes;
};
constexpr WeightBlock BlockOf(WeightFormat format) {
  constexpr WeightBlock kBlocks[] = {{1, 4},    {1, 2},     {1, 2},     {1, 1},  // F32, F16, BF16, F8_E4M3
                                     {32, 34},  {32, 18},   {256, 144}, {256, 176}, {256, 210},  // Q8_0 .. Q6_K
                                     {32, 20},  {32, 22},   {32, 24},   {32, 18},     // Q4_1, Q5_0, Q5_1, IQ4_NL
                                     {256, 84}, {256, 110}, {256, 136}, {256, 110}};  // Q2_K, Q3_K, IQ4_XS, IQ3_S
  return kBlocks[static_cast<int>(format) - 1];
}
// Returns the bytes of a row. `cols` is a multiple of the block's weights.
constexpr int64_t RowBytes(WeightFormat format, int64_t cols) {
  return cols / BlockOf(format).weights * BlockOf(format).bytes;
}
// Returns the required alignment in bytes of the first row's address.
constexpr int64_t AlignmentOf(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : format == WeightFormat::kF8E4M3 ? 1 : 2;
}

// Values that the four bits of IQ4_NL and IQ4_XS stand for.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Offsets in bytes of a GGUF block's float16 factors d and m; below 0: the format has no m.
struct FactorOffsets {
  int32_t d;
  int32_t m;
};
constexpr FactorOffsets FactorsAt(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return {0, 2};
    case WeightFormat::kQ2_K:
      return {80, 82};
    case WeightFormat::kQ3_K:
      return {108, -1};
    case WeightFormat::kQ6_K:
      return {208, -1};
    default:
      return {0, -1};
  }
}

// F8_E4M3 has a scale for each kFp8Block x kFp8Block weights. Fp8Blocks returns the number of such blocks, and so of
// scales, along a dimension of `count` rows or columns.
inline constexpr int64_t kFp8Block = 128;
constexpr int64_t Fp8Blocks(int64_t count) { return (count + kFp8Block - 1) / kFp8Block; }

// Converts `count` whole blocks to count * BlockOf(format).weights floats. Not for F8_E4M3, whose scales are stored
// elsewhere.
void DequantizeBlocks(WeightFormat format, const void* blocks, int64_t count, float* out);

// True if the factor d of a GGUF block is finite, and also m if the format has it.
bool HasFiniteFactors(WeightFormat format, const void* block);

// Converts a row of `cols` weights (a multiple of the block's) of any format to float32. `scales`: for F8_E4M3 the
// row's Fp8Blocks(cols) scales, otherwise unused.
void DequantizeRow(WeightFormat format, const void* row, const float* scales, int64_t cols, float* out);

// Converts `count` floats (a multiple of 32) to count / 32 blocks of Q8_0. d is the float16 nearest to max|w| / 127 of
// a block, and q the nearest integers, within +-127. Returns false, and leaves `blocks` undefined, if a value is not
// finite or d overflows float16.
bool QuantizeQ8_0(const float* values, int64_t count, void* blocks);

float E4M3ToFloat(uint8_t bits);

}  // namespace gdn
