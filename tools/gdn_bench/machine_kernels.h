// The loops behind the machine's limits, in the widest vectors of this processor: stream reads, copies, updates and
// multiply-adds.
//
// Thread safety: free functions on the caller's memory; meant to run on every core at once.
//
//   volatile float sum = ReadStreams(data, floats);
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdn::bench {

// Lengths below are multiples of this many floats, pointers aligned to 64 bytes.
inline constexpr size_t kStreamGrain = 1024;

// Sum of all floats, read as four parallel streams (one stream leaves the prefetchers of some processors idle).
float ReadStreams(const float* data, size_t floats);

// Copies with non-temporal stores, which spare reading the destination's lines first. memcpy does so only above a size
// of its own choosing, and is then the slower of the two.
void CopyStreams(const float* src, float* dst, size_t floats);

// data *= factor, in place: what a recurrent state's read-modify-write is at best.
void UpdateInPlace(float* data, size_t floats, float factor);

// `iterations` times x <- x * multiplier + addend, in every lane of 12 independent accumulators. Accumulator j starts
// at the fixed point f = addend / (1 - multiplier) plus j. Returns the mean of all lanes: f + 5.5 *
// multiplier^iterations.
float MultiplyAdds(int64_t iterations, float multiplier, float addend);

// Floating-point operations of one iteration of MultiplyAdds (two per lane and accumulator).
int64_t FlopsPerIteration();

}  // namespace gdn::bench
