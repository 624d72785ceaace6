// The number of blocks of a launch.
//
// Thread safety: a plain value.
//
//   Launch("gating", GatingKernel<wave()>, {.x = blocks, .y = heads}, kThreads, stream, params);
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdn::gpu {

struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
  // True only if the kernel calls WaitForPriorKernels before it reads or writes what other kernels write. So if the
  // stream supports it, the kernel's blocks may begin while the kernel before it ends.
  bool early = false;
  size_t lds_bytes = 0;  // of LaunchedSharedMemory
};

}  // namespace gdn::gpu
