// Elements from one dtype to another, of which one is float32: what a kernel cannot read or write as it is.
//
// To float32 is exact; from it rounds to nearest even (base/dtype.h).
// Thread safety: as many calls at a time as write different memory. Ownership: none.
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
  OutputTensor y;  // [count]; no part of x
};

// INVALID_ARGUMENT where a pointer is missing, or not one of the two dtypes alone is float32.
absl::Status ValidateConvert(const ConvertParams& params);

// On host memory, at memory speed; also the reference.
absl::Status ConvertCpu(const ConvertParams& params);

absl::Status ConvertGpu(const ConvertParams& params, const gpu::Stream& stream);

}  // namespace gdn
