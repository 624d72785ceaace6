// Converts elements between float32 and another dtype, for kernels that cannot read or write that dtype themselves.
//
// Conversion to float32 is exact, from float32 rounds to nearest even (base/dtype.h).
// Thread safety: concurrent calls must write different memory. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(backend.Convert({.count = n, .x = {bytes, DType::kBF16}, .y = floats}));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/typed_tensor.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct ConvertParams {
  int64_t count = 0;
  InputTensor x;   // [count]
  OutputTensor y;  // [count]; must not overlap x
};

// INVALID_ARGUMENT if count is negative, if a pointer is null (unless count is 0), or unless exactly one of the two
// dtypes is float32.
absl::Status ValidateConvert(const ConvertParams& params);

// Both call ValidateConvert first, because they are called without a backend too. ConvertCpu converts host memory on
// the calling thread; it is also the reference. ConvertGpu issues the conversion of device memory on `stream`.
absl::Status ConvertCpu(const ConvertParams& params);
absl::Status ConvertGpu(const ConvertParams& params, const gpu::Stream& stream);

}  // namespace gdn
