// Element types of tensors on the wire, in checkpoints and in memory, and conversions between them.
//
// Thread safety: free functions on the caller's memory. Conversions round to nearest even and keep NaN and Inf.
//
//   std::vector<float> x(n);
//   ConvertToFloat(DType::kBF16, data, n, x.data());
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace gdn {

enum class DType : uint8_t { kF32 = 1, kF16 = 2, kBF16 = 3 };

// Returns the bytes of one element: 4 or 2.
size_t DTypeSize(DType dtype);

// Returns "F32", "F16" or "BF16", the names in safetensors.
std::string_view DTypeName(DType dtype);

// Parses a name that DTypeName returns. INVALID_ARGUMENT for any other name.
absl::StatusOr<DType> ParseDType(std::string_view name);

float BF16ToFloat(uint16_t bits);
float F16ToFloat(uint16_t bits);
uint16_t FloatToBF16(float value);
uint16_t FloatToF16(float value);

// Converts `count` elements of type `from` at `src` (little-endian, any alignment) to float32 at `dst`.
void ConvertToFloat(DType from, const void* src, size_t count, float* dst);

// Converts `count` float32 at `src` to type `to` at `dst` (little-endian, any alignment). A finite value beyond the
// type's range becomes an infinity.
void ConvertFromFloat(const float* src, size_t count, DType to, void* dst);

// True if any of the `count` elements at `data` (any alignment) is NaN or Inf.
bool AnyNonFinite(DType dtype, const void* data, size_t count);

}  // namespace gdn
