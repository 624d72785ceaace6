// Rows of x rounded to int8 or to fp16 in device memory, as the tile kernels of such products read them.
//
// A group of 64 features rounded to fp16 has kHalfWords words for each row: kHalfPairs pairs, the first feature in the
// low half; then, as float32, GroupScale's inverse and the sums of the first and of the last 32 numbers (HalfSumOf).
// Features past the last are zeros.
// A block of 32 features rounded to int8 has kRoundedWords words for each row: kBlockWords of four signed bytes, the
// first feature lowest; then, as float32, the block's scale, the sum of its 32 integers and the sum of the first 16.
// The layout is [groups or blocks][words][pitch], so that a tile's part is rows of neighbouring words.
// Thread safety: plain values and free functions. Ownership: the caller's memory.
//
//   const RoundedRows x{workspace, PitchOf(rows)};
//   GDN_RETURN_IF_ERROR(LaunchRoundRows(params, x, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/projection/projection.h"

namespace gdn::gpu {

inline constexpr int kRoundedWords = kInt8Block / 4 + 3;
inline constexpr int kScaleWord = kInt8Block / 4;
inline constexpr int kSumWord = kScaleWord + 1;
inline constexpr int kHalfSumWord = kScaleWord + 2;

inline constexpr int kHalfPairs = kHalfGroup / 2;
inline constexpr int kHalfSumsWord = kHalfPairs + 1;
inline constexpr int kHalfWords = kHalfSumsWord + 2;

struct RoundedRows {
  float* words = nullptr;  // 16-byte aligned
  int32_t pitch = 0;       // words from one word of a row to its next: the rows, rounded up to a multiple of 4
};

constexpr int32_t PitchOf(int64_t rows) { return static_cast<int32_t>((rows + 3) / 4 * 4); }
constexpr int64_t RoundedFloats(int64_t rows, int64_t features) {
  return features / kInt8Block * kRoundedWords * PitchOf(rows);
}
constexpr int64_t HalfFloats(int64_t rows, int64_t features) {
  return (features + kHalfGroup - 1) / kHalfGroup * kHalfWords * PitchOf(rows);
}

// Rounds params.rows rows of params.x to `rows`. `features` is params.weight.cols, a multiple of 32. Padding rows keep
// their bits.
absl::Status LaunchRoundRows(const ProjectionParams& params, const RoundedRows& rows, const Stream& stream);
// The same to fp16, for any number of features.
absl::Status LaunchHalveRows(const ProjectionParams& params, const RoundedRows& rows, const Stream& stream);

}  // namespace gdn::gpu
