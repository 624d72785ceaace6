// The number of blocks of a launch, and what else a launch needs to know of its kernel.
//
// Thread safety: a plain value.
//
//   Launch("gating", GatingKernel<wave()>, {.x = blocks, .y = heads}, kThreads, stream, params);
#pragma once

#include <cstdint>

namespace gdn::gpu {

struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
  // True only if the kernel calls WaitForPriorKernels before it reads or writes what other kernels write. So if the
  // stream supports it, the kernel's blocks may begin while the kernel before it ends.
  bool early = false;
  // Bytes of LargeSharedMemory's T, for kernels that call it; they may not be `early`.
  int lds_bytes = 0;
};

}  // namespace gdn::gpu
