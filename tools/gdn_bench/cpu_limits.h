// The limits of a CPU: loops in its widest vectors on every thread, on memory that its caches do not hold.
//
// Thread safety: one thread at a time. Ownership: owns its threads and two buffers.
//
//   GDN_ASSIGN_OR_RETURN(auto limits, MakeCpuLimits(threads));
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/machine_limits.h"

namespace gdn::bench {

// `threads` as the kernels use. RESOURCE_EXHAUSTED where the buffers cannot be had; INTERNAL where the multiply-add
// loop does not give the right number or does not take twice as long for twice the work (so a compiler cannot have
// removed it).
absl::StatusOr<std::unique_ptr<MachineLimits>> MakeCpuLimits(int threads);

}  // namespace gdn::bench
