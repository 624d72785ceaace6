// Process-wide settings of a server.
//
// Thread safety: SetUpServerProcess is called first in main, before any thread is made; DescriptorLimit by any thread.
//
//   int main() { gdn::SetUpServerProcess(); ... }
#pragma once

#include <cstdint>

namespace gdn {

// Opens closed standard streams to /dev/null. Makes a write to a pipe without a reader an error instead of the end of
// the process (a broken log pipe must not cost the sessions), and a write past the file size limit (ulimit -f) too.
// Raises the descriptor limit to the hard limit, at most 2^20. Makes glibc keep freed memory: messages have megabytes,
// and faulting fresh pages in costs more than the copy into them. So each of the allocator's heaps keeps its peak size;
// there is one per processor and at most 8 (glibc's default is 8 per processor). Turns off Abseil's search for lock
// cycles, which distributions build in and which makes every lock and unlock of every thread use one table; tests keep
// it on.
void SetUpServerProcess();

// Returns how many descriptors the process may have open now (the soft limit), at most 2^20; 1024 if the system does
// not tell.
int64_t DescriptorLimit();

}  // namespace gdn
