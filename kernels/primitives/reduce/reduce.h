// Reduces many numbers to one: sums, maxima, and both over the differences of two tensors.
//
//   kSum          sum x              kMax         max x
//   kAbsDiffSum   sum |x - y|        kAbsDiffMax  max |x - y|
//   kSquaredDiff  sum (x - y)^2
// Two passes over blocks of a fixed number of elements, summed in double, so a result depends on the inputs only, not
// on the device. A NaN makes the result NaN, also for maxima. For count 0 a sum is 0, a maximum -infinity.
// Thread safety: any number of calls at a time on different outputs and workspaces. Ownership: none; pointers are
// backend memory (host memory for the reference, which needs no workspace).
//
//   GDN_ASSIGN_OR_RETURN(DeviceBuffer work, DeviceBuffer::Make(backend, ReduceWorkspaceBytes(n)));
//   GDN_RETURN_IF_ERROR(ReduceGpu({.op = ReduceOp::kAbsDiffMax, .count = n, .x = x, .y = y, .result = result,
//                                  .workspace = static_cast<double*>(work.data())}, stream));
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

enum class ReduceOp : uint8_t { kSum, kMax, kAbsDiffSum, kAbsDiffMax, kSquaredDiff };

// Number of elements that a block of the first pass reduces to one number.
inline constexpr int64_t kReduceBlockElements = 4096;

struct ReduceParams {
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;
  const float* x = nullptr;     // [count]
  const float* y = nullptr;     // [count], for the three ops on differences; unused otherwise
  float* result = nullptr;      // [1]
  double* workspace = nullptr;  // ReduceWorkspaceBytes(count) bytes, 8-byte aligned; unused by the reference
};

size_t ReduceWorkspaceBytes(int64_t count);

absl::Status ValidateReduce(const ReduceParams& params);
void ReduceReference(const ReduceParams& params);
absl::Status ReduceGpu(const ReduceParams& params, const gpu::Stream& stream);

}  // namespace gdn
