// The forms in which a matrix of weights lies in files and in memory, and its elements as float32.
//
// Plain ones have an element of base/dtype.h after the other. The others are quantised. GGUF's have blocks of
// neighbouring weights of a row, with the exact bytes of the file; d and m are float16, q, s and t integers:
//   Q8_0  32 weights, 34 bytes:    d, 32 int8 q                               w = d q
//   Q4_0  32 weights, 18 bytes:    d, 16 bytes of 4-bit q                     w = d (q - 8); the low halves come first
//   Q4_K  256 weights, 144 bytes:  d, m, 8 pairs of 6-bit (s, t), 4-bit q     w = d s q - m t, a pair for 32 weights
//   Q5_K  256 weights, 176 bytes:  as Q4_K, with a fifth bit of q
//   Q6_K  256 weights, 210 bytes:  6-bit q, 16 int8 s, d                      w = d s (q - 32), an s for 16 weights
// In float32, products of these are exact and only Q4_K's and Q5_K's difference is rounded, fused or not.
//   F8_E4M3  a byte a weight, and float32 scales beside them, one for each 128 rows x 128 columns; edge blocks may be
//            partial                                                          w = e4m3 * scale, rounded
// E4M3 (the FN kind): a sign, 4 exponent bits of bias 7, 3 mantissa bits; largest 448; 0x7f and 0xff are NaN; no
// infinity.
// A row is its blocks, one after the other, and never padded.
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
  kF32 = 1,  // the plain ones are as in DType
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

// "F32", "F8_E4M3", "Q4_K": as their file formats call them.
std::string_view WeightFormatName(WeightFormat format);

constexpr bool IsPlain(WeightFormat format) { return format <= WeightFormat::kBF16; }
constexpr WeightFormat FormatOf(DType dtype) { return static_cast<WeightFormat>(dtype); }
// What its elements are where kernels read them one by one: a plain format's dtype, else F32.
constexpr DType WidenedDType(WeightFormat format) { return IsPlain(format) ? static_cast<DType>(format) : DType::kF32; }

// Neighbouring weights of a row that are stored together, and their bytes; a row has whole blocks.
struct WeightBlock {
  int64_t weights;
  int64_t bytes;
};
constexpr WeightBlock BlockOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {1, 4};
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return {1, 2};
    case WeightFormat::kF8E4M3:
      return {1, 1};
    case WeightFormat::kQ8_0:
      return {32, 34};
    case WeightFormat::kQ4_0:
      return {32, 18};
    case WeightFormat::kQ4_K:
      return {256, 144};
    case WeightFormat::kQ5_K:
      return {256, 176};
    case WeightFormat::kQ6_K:
      return {256, 210};
  }
  return {1, 1};
}
// `cols` is a multiple of the block's weights.
constexpr int64_t RowBytes(WeightFormat format, int64_t cols) {
  return cols / BlockOf(format).weights * BlockOf(format).bytes;
}
// What the first row's address is a multiple of.
constexpr int64_t AlignmentOf(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : format == WeightFormat::kF8E4M3 ? 1 : 2;
}

// Rows and columns that share one of F8_E4M3's scales, and how many scales so many of them have.
inline constexpr int64_t kFp8Block = 128;
constexpr int64_t Fp8Blocks(int64_t count) { return (count + kFp8Block - 1) / kFp8Block; }

// `count` whole blocks, of any format but F8_E4M3, which has scales elsewhere.
void DequantizeBlocks(WeightFormat format, const void* blocks, int64_t count, float* out);

// Whether d, and m where there is one, of a block of these formats are finite.
bool HasFiniteFactors(WeightFormat format, const void* block);

// A row of any format. `scales`: of F8_E4M3 alone, those of the row, Fp8Blocks(cols).
void DequantizeRow(WeightFormat format, const void* row, const float* scales, int64_t cols, float* out);

// `count` floats, a multiple of 32, as Q8_0: d is the float16 nearest to the block's greatest magnitude by 127, q the
// nearest integers. False, and nothing that is worth reading, where a value is not finite or d no float16.
bool QuantizeQ8_0(const float* values, int64_t count, void* blocks);

float E4M3ToFloat(uint8_t bits);

}  // namespace gdn
