// Tells a thread that stands still in the kernel from one that is slow.
//
// The system counts how often a thread has been taken off a processor. A thread that waits for one thing only (a disk,
// a peer) adds nothing to the count. A thread that works in many small waits, or that waits for a processor, is not
// standing still, however busy the machine is.
// Thread safety: free functions, from any thread. Ownership: none.
//
//   const int thread = ThisThreadNumber();
//   ...
//   const std::optional<int64_t> count = SwitchesOf(thread);  // by another thread
#pragma once

#include <cstdint>
#include <optional>

namespace gdn {

// The system's number of the calling thread.
int ThisThreadNumber();

// How often the thread of this process has left a processor. nullopt: it runs, or waits for a processor. -1: the system
// does not tell (no /proc, or no such thread).
std::optional<int64_t> SwitchesOf(int thread);

}  // namespace gdn
