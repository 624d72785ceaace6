// A matrix as compressed-tensors and ModelOpt pack it, and its weights in a format that kernels read.
//
//   kFp8    a byte of E4M3 a weight                          w = e4m3 * scale
//   kInt8   an int8 q a weight                               w = q * scale
//   kInt4   4 bits a weight, eight in an int32, the first in the lowest bits; q and zero points are stored plus 8
//                                                            w = (q - zero point) * scale
//   kNvfp4  4 bits of E2M1 a weight, two in a byte, the first in the low half, and scales in E4M3
//                                                            w = e2m1 * (scale / global), or e2m1 * (scale * global)
// E2M1 is a sign and 0, 0.5, 1, 1.5, 2, 3, 4 or 6. A scale is for `group` neighbouring weights of a row, or for all
// weights. If another format has the weights exactly, they are unpacked to that format. Otherwise they are unpacked to
// float32, and each weight is within two roundings of its formula.
// Thread safety: plain values and free functions. Ownership: none; the bytes must outlive it.
// Sources of the formats: https://github.com/vllm-project/compressed-tensors (compressors/pack_quantized, nvfp4,
// naive_quantized) and NVIDIA ModelOpt.
//
//   const WeightFormat format = UnpackedFormat(weight);
//   std::string bytes = Unpack(weight, format);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/weight_format.h"

namespace gdn {

enum class PackedFormat : uint8_t { kFp8, kInt8, kInt4, kNvfp4 };

// Returns "FP8", "INT8", "INT4" or "NVFP4".
std::string_view PackedFormatName(PackedFormat format);

struct PackedWeight {
  PackedFormat format = PackedFormat::kFp8;
  int64_t rows = 0;
  int64_t cols = 0;
  std::string_view data;
  int64_t group = 0;  // neighbouring weights of a row that share a scale; above 0 and divides `cols`
  bool one_scale = false;
  // A plain format or E4M3. There are [rows, cols / group] scales, or one if one_scale is set.
  WeightFormat scale_format = WeightFormat::kF32;
  std::string_view scales;
  // For kInt4: int32 [ceil(rows / 8), cols / group], each with 4 bits for 8 rows, the first in the lowest. Empty: none.
  std::string_view zero_points = {};
  float global_scale = 1.0f;  // for kNvfp4: all scales are multiplied by it, or if global_divides divided by it
  bool global_divides = false;

  int64_t scale_count() const { return one_scale ? 1 : rows * (cols / group); }
  int64_t file_bytes() const { return static_cast<int64_t>(data.size() + scales.size() + zero_points.size()); }
};

// Returns the format to unpack to. F8_E4M3 for FP8 with one scale for all weights. For integers in groups of whole
// blocks with float16 scales: Q4_0 if they are INT4 without zero points, else Q8_0. Otherwise F32. Reads the scales.
WeightFormat UnpackedFormat(const PackedWeight& weight);

// INVALID_ARGUMENT (INVALID_TENSOR_DATA) names the row and column of an FP8 weight that is not finite, or the number of
// a scale that is not finite or makes weights too large for float32. Reads the scales, and FP8's weights.
absl::Status CheckFinite(const PackedWeight& weight);

// Returns all rows in `format`, which is F32 or the result of UnpackedFormat. F8_E4M3's weights stay as they are; for
// it, returns the float32 scales of its blocks.
std::string Unpack(const PackedWeight& weight, WeightFormat format);

}  // namespace gdn
