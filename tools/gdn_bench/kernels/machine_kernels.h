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

// Lengths given to ReadStreams, CopyStreams and UpdateInPlace must be multiples of this many floats, and pointers
// aligned to 64 bytes.
inline constexpr size_t kStreamGrain = 1024;

// Returns the sum of all floats, read as four parallel streams (one stream leaves prefetchers of some processors idle).
// `floats`: a multiple of kStreamGrain; `data` is aligned to 64 bytes.
float ReadStreams(const float* data, size_t floats);

// Copies with non-temporal stores, which avoid reading the destination's cache lines first. memcpy uses them only above
// a size of its own choice, and is then slower than this function. `floats`: a multiple of kStreamGrain; both pointers
// are aligned to 64 bytes.
void CopyStreams(const float* src, float* dst, size_t floats);

// Does data *= factor in place: the fastest possible read-modify-write of a recurrent state. `floats`: a multiple of
// kStreamGrain; `data` is aligned to 64 bytes.
void UpdateInPlace(float* data, size_t floats, float factor);

// Does x <- x * multiplier + addend `iterations` times, in every lane of 12 independent accumulators. Accumulator j
// starts at the fixed point f = addend / (1 - multiplier) plus j. Returns the mean of all lanes: f + 5.5 *
// multiplier^iterations.
float MultiplyAdds(int64_t iterations, float multiplier, float addend);

// Returns the floating-point operations of one iteration of MultiplyAdds: two per lane and accumulator.
int64_t FlopsPerIteration();

}  // namespace gdn::bench
