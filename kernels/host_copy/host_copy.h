// Copies between the device's memory and page-locked host memory by a kernel. A copy of a few KiB is over sooner than
// by the device's copy engines, and the host sees its end in its own memory, without a call of the runtime.
//
// Thread safety: any number of calls at a time. Asynchronous: runs in the stream's order. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(HostCopyGpu(host, device, bytes, flags, number, stream));
//   while (!HostCopyHasEnded(flags, HostCopyBlocks(bytes), number)) {
//   }
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

inline constexpr size_t kHostCopyBlockBytes = 4096;

// Returns the number of blocks that copy `bytes` bytes. Each has a flag.
constexpr int64_t HostCopyBlocks(size_t bytes) {
  return static_cast<int64_t>((bytes + kHostCopyBlockBytes - 1) / kHostCopyBlockBytes);
}

// Copies `bytes` bytes, in the stream's order. One of `to` and `from` is memory of the device, the other page-locked
// memory of the host; both are in use until the copy has run. If `flags` is not null, it is page-locked memory for a
// word of each block, and each block stores `number` to its word once the host can see what the block has copied, and
// what the stream did before. 0 bytes are valid, and set no flag.
absl::Status HostCopyGpu(void* to, const void* from, size_t bytes, uint32_t* flags, uint32_t number,
                         const gpu::Stream& stream);

// True if the copy's blocks have all stored `number`. The caller then sees what they copied.
inline bool HostCopyHasEnded(const uint32_t* flags, int64_t blocks, uint32_t number) {
  for (int64_t i = 0; i < blocks; ++i) {
    if (__atomic_load_n(flags + i, __ATOMIC_ACQUIRE) != number) return false;
  }
  return true;
}

}  // namespace gdn
