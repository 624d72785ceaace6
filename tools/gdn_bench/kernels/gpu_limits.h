// The loops behind a GPU's limits: streams of 16-byte accesses, and multiply-adds in registers.
//
// Thread safety: one thread at a time; launches go to the stream. Ownership: the functions use the caller's device
// memory. Lengths must be multiples of kGpuTileFloats, and pointers aligned to 16 bytes.
//
//   GDN_RETURN_IF_ERROR(StreamCopyGpu(src, dst, floats, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn::bench {

// Number of floats that a block moves at once.
inline constexpr int64_t kGpuTileFloats = 256 * 4 * 4;
// Most threads that StreamReadGpu and MultiplyAddsGpu launch.
int64_t GpuLimitThreads(const gpu::Stream& stream);

// Launch a pass over the buffers, and do not wait: data = value, dst = src, and data *= factor. Errors of the launch.
absl::Status StreamFillGpu(float* data, int64_t floats, float value, const gpu::Stream& stream);
absl::Status StreamCopyGpu(const float* src, float* dst, int64_t floats, const gpu::Stream& stream);
absl::Status StreamUpdateGpu(float* data, int64_t floats, float factor, const gpu::Stream& stream);
// Sets sums[t], in device memory, to the sum of the floats that thread t read, for t < GpuLimitThreads(); 0 for threads
// without a tile. Does not wait.
absl::Status StreamReadGpu(const float* data, int64_t floats, float* sums, const gpu::Stream& stream);

inline constexpr int kGpuAccumulators = 8;    // independent accumulators of a thread of MultiplyAddsGpu
inline constexpr int kGpuStepsPerRound = 16;  // multiply-adds of each accumulator in a round
// In each of GpuLimitThreads() threads, does x <- x * multiplier + addend for steps = `rounds` x kGpuStepsPerRound
// times, on kGpuAccumulators accumulators. Accumulator j starts at the fixed point f = addend / (1 - multiplier) plus
// j. Sets means[t], in device memory, to f + mean(j) * multiplier^steps. Does not wait.
absl::Status MultiplyAddsGpu(int64_t rounds, float multiplier, float addend, float* means, const gpu::Stream& stream);

}  // namespace gdn::bench
