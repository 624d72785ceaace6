// Layout of weights in GPU memory. GpuBackend::CopyWeightsIn converts to this layout, the only one that kernels read.
//
// Plain weights lie as in the file; with scales (WeightMatrix), as fp16 numbers in the file's order, so that no kernel
// converts one for products of such numbers. Quantised weights are a file's bits, reordered so that lanes with
// neighbouring outputs load adjacent 16 bytes.
// Rows are divided into tiles of kPackedRows; the last tile is padded with zeros, so that all distances within a tile
// are compile-time constants. A tile is its planes one after another; a plane is [units of features][rows of the
// tile][bytes of a unit]:
//   Q8_0    q: 16 features, 16 bytes of q + 128          d: 64 features, d of both blocks (0 for a missing one)
//   Q4_0    q: 32 features, 16 bytes                     d: as Q8_0
//   Q4_1    q: as Q4_0                                   d: 64 features, d and m of both blocks
//   Q5_0    q: as Q4_0    high: 64 features, 8 bytes     d: as Q8_0
//   Q5_1    q: as Q4_0    high: as Q5_0                  d: as Q4_1
//   IQ4_NL  as Q4_0
//   Q2_K    q: 64 features, 16 bytes                     s: 64 features, 4 (s, t)  d: 256 features, d and m
//   Q3_K    q: as Q2_K    high: as Q5_0                  s: 256 features, 12 bytes d: 256 features, 2 bytes
//   Q4_K    q: as Q4_0                                   s: 256 features, 16 bytes
//   Q5_K    q: as Q4_0    high: as Q5_0                  s: as Q4_K
//   Q6_K    q: as Q4_0    high: 64 features, 16 bytes    s: 64 features, 4 int8    d: 256 features, 2 bytes
//   IQ4_XS  q: as Q4_0                                   s: 256 features, the 8 bytes before q in the file
//   IQ3_S   q: as Q4_0, (v + 15) / 2 of the signed v     s: 256 features, d, 2 bytes of 0 and the 4 bytes of s
//   F8_E4M3 q: 16 features, 16 bytes; the last unit is padded with 0. Scales are stored elsewhere, as in the file.
// All words are little-endian. A 16-byte unit of 4-bit weights: word j has features 8j to 8j + 3 in the low halves of
// its bytes, and 8j + 4 to 8j + 7 in the high ones. High bits: byte b of a word has those of feature 4i + b: of 32
// features in bit i, or of 16 features in bits 2i and 2i + 1 (Q6_K, and q of Q2_K and Q3_K). s of Q4_K and Q5_K: word 0
// is d, and above it m. Each 64 features have 24 bits, (s, t, s, t) of six bits, the first lowest; the first 24 bits
// are the low ones of word 1, the others follow. s of Q3_K: two words have four low bits of eight s each, the third
// word two high bits of all. Sizes equal the file's, except for padding rows, the second block of a pair if the number
// of blocks of 32 is odd, F8_E4M3's last unit, and IQ3_S. Its values have 4 bits here, because to read a table costs
// more than to read these bits: 256 weights take 136 bytes instead of 110.
// Thread safety: free functions on the caller's memory. Ownership: none.
//
//   std::vector<char> packed(PackedWeightBytes(m));
//   GDN_RETURN_IF_ERROR(PackWeights(m, packed.data()));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/weight_format.h"
#include "kernels/projection/projection.h"

namespace gdn {

inline constexpr int kPackedRows = 16;
inline constexpr int64_t kMaxPackedFeatures = int64_t{1} << 26;

// Bytes of one row in each plane, in the planes' order; 0 for planes that the format does not have. Plain formats have
// all in q.
struct PackedRowBytes {
  int64_t q = 0;
  int64_t high = 0;
  int64_t scales = 0;
  int64_t d = 0;

  constexpr int64_t total() const { return q + high + scales + d; }
};
constexpr PackedRowBytes PackedRowBytesOf(WeightFormat format, int64_t cols) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return {.q = cols, .d = (cols + 63) / 64 * 4};
    case WeightFormat::kQ4_0:
    case WeightFormat::kIQ4_NL:
      return {.q = cols / 2, .d = (cols + 63) / 64 * 4};
    case WeightFormat::kQ4_1:
      return {.q = cols / 2, .d = (cols + 63) / 64 * 8};
    case WeightFormat::kQ5_0:
      return {.q = cols / 2, .high = (cols + 63) / 64 * 8, .d = (cols + 63) / 64 * 4};
    case WeightFormat::kQ5_1:
      return {.q = cols / 2, .high = (cols + 63) / 64 * 8, .d = (cols + 63) / 64 * 8};
    case WeightFormat::kQ2_K:
      return {.q = cols / 4, .scales = cols / 16, .d = cols / 256 * 4};
    case WeightFormat::kQ3_K:
      return {.q = cols / 4, .high = cols / 8, .scales = cols / 256 * 12, .d = cols / 256 * 2};
    case WeightFormat::kIQ4_XS:
    case WeightFormat::kIQ3_S:
      return {.q = cols / 2, .scales = cols / 256 * 8};
    case WeightFormat::kQ4_K:
      return {.q = cols / 2, .scales = cols / 256 * 16};
    case WeightFormat::kQ5_K:
      return {.q = cols / 2, .high = cols / 8, .scales = cols / 256 * 16};
    case WeightFormat::kQ6_K:
      return {.q = cols / 2, .high = cols / 4, .scales = cols / 16, .d = cols / 256 * 2};
    case WeightFormat::kF8E4M3:
      return {.q = (cols + 15) / 16 * 16};
    default:
      return {.q = RowBytes(format, cols)};
  }
}

// Offsets of a tile's planes high, scales and d, and of its end, in bytes from the tile's start, where q is. `cols` is
// at most kMaxPackedFeatures.
struct PackedPlanes {
  uint32_t high, scales, d, bytes;
};
constexpr PackedPlanes PackedPlanesOf(WeightFormat format, int64_t cols) {
  const PackedRowBytes row = PackedRowBytesOf(format, cols);
  const int64_t high = kPackedRows * row.q;
  const int64_t scales = high + kPackedRows * row.high;
  const int64_t d = scales + kPackedRows * row.scales;
  return {static_cast<uint32_t>(high), static_cast<uint32_t>(scales), static_cast<uint32_t>(d),
          static_cast<uint32_t>(d + kPackedRows * row.d)};
}

// Returns the bytes of a packed matrix, with padding rows but without scales.
inline int64_t PackedWeightBytes(const WeightMatrix& weight) {
  if (LiesAsHalves(weight)) return weight.rows * RowBytes(WeightFormat::kF16, weight.cols);
  if (IsPlain(weight.format)) return weight.rows * RowBytes(weight.format, weight.cols);
  return (weight.rows + kPackedRows - 1) / kPackedRows * kPackedRows *
         PackedRowBytesOf(weight.format, weight.cols).total();
}

// Packs a matrix from its file's layout in host memory, with scales there, to `packed`, PackedWeightBytes bytes of host
// memory. INVALID_ARGUMENT if quantised weights have more than kMaxPackedFeatures columns, or a finite F8_E4M3 scale
// exceeds 2^119 in magnitude.
absl::Status PackWeights(const WeightMatrix& from, void* packed);

}  // namespace gdn
