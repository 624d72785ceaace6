// The CPU backend: SIMD operators (Highway, dispatched for this processor at run time) on one thread pool.
//
// Thread safety: see Backend. Every operator has finished when its call returns.
//
//   GDN_ASSIGN_OR_RETURN(auto backend, MakeCpuBackend({.threads = 8}));
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace gdn {

struct CpuBackendOptions {
  int threads = 0;  // 0: one per processor that this process may use
  ProductMath math = ProductMath::kExact;
};

// Makes the CPU backend, with a thread pool of its own. INVALID_ARGUMENT for threads outside 0 .. 1024 (inclusive).
// FAILED_PRECONDITION (DEVICE_UNSUPPORTED) for kHalf, which only a GPU gains from.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options);

}  // namespace gdn
