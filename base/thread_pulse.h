// Distinguishes a thread that hangs in the kernel from one that is slow.
//
// The kernel counts how often a thread has left a processor. The count of a thread that waits for one thing (a disk, a
// peer) does not change. A thread that works in many short waits, or that waits for a processor, is not hanging, even
// on a busy machine.
// Thread safety: free functions, from any thread. Ownership: none.
//
//   const int thread = ThisThreadNumber();
//   ...
//   const std::optional<int64_t> count = SwitchesOf(thread);  // by another thread
#pragma once

#include <cstdint>
#include <optional>

namespace gdn {

// Returns the calling thread's kernel id (tid).
int ThisThreadNumber();

// Returns how often this process's thread has left a processor; nullopt if it runs or waits for a processor; -1 if the
// system does not tell (no /proc, or no such thread).
std::optional<int64_t> SwitchesOf(int thread);

}  // namespace gdn
