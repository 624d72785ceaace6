// Zeroes device memory with a kernel, because the runtimes' memset is slow on some cards and unordered on others.
//
// Thread safety: any number of calls at a time. Asynchronous: runs in the stream's order.
//
//   GDN_RETURN_IF_ERROR(FillZeroGpu(data, bytes, stream));
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// Zeroes `bytes` bytes of device memory at `data`, in the stream's order. `data` must be aligned to 16 bytes, and
// `bytes` a multiple of 4; 0 is valid.
absl::Status FillZeroGpu(void* data, size_t bytes, const gpu::Stream& stream);

}  // namespace gdn
