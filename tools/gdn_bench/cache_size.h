// The size of the last-level cache, so that a working set can be said to exceed it.
//
// Thread safety: a free function that reads /sys.
//
//   bool cold = working_set_bytes >= kColdFactor * LastLevelCacheBytes();
#pragma once

#include <cstdint>

namespace gdn::bench {

// A working set of this many last-level caches, visited in turn, is taken to come from memory.
inline constexpr int64_t kColdFactor = 4;

// Bytes of all distinct last-level caches of this machine; 32 MiB where the system does not say. Under a hypervisor
// this is what the guest is told.
int64_t LastLevelCacheBytes();

}  // namespace gdn::bench
