// Storage formats of weight matrices in files and in memory, and conversion of their elements to float32.
//
// Plain formats store one element of base/dtype.h after another. The others are quantised. GGUF's formats have blocks
// of neighbouring weights of a row, byte for byte as in the file; d and m are float16, q, s and t integers:
//   Q8_0  32 weights, 34 bytes:    d, 32 int8 q                               w = d q
//   Q4_0  32 weights, 18 bytes:    d, 16 bytes of 4-bit q                     w = d (q - 8); the low halves come first
//   Q4_K  256 weights, 144 bytes:  d, m, 8 pairs of 6-bit (s, t), 4-bit q     w = d s q - m t, a pair for 32 weights
//   Q5_K  256 weights, 176 bytes:  as Q4_K, with a fifth bit of q
//   Q6_K  256 weights, 210 bytes:  6-bit q, 16 int8 s, d                      w = d s (q - 32), an s for 16 weights
// In float32 the products are exact and only the difference in Q4_K and Q5_K is rounded, so FMA gives the same bits.
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
};

inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::kF32,    WeightFormat::kF16,  WeightFormat::kBF16,
                                                  WeightFormat::kF8E4M3, WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                                  WeightFormat::kQ4_K,   WeightFormat::kQ5_K, WeightFormat::kQ6_K};

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
  constexpr WeightBlock kBlocks[] = {{1, 4},   {1, 2},   {1, 2},     {1, 1},  // F32, F16, BF16, F8_E4M3
                                     {32, 34}, {32, 18}, {256, 144}, {256, 176}, {256, 210}};  // Q8_0 .. Q6_K
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
