// Settings of a process that serves.
//
// Thread safety: SetUpServerProcess is called first in main, before any thread is made; DescriptorLimit by any thread.
//
//   int main() { gdn::SetUpServerProcess(); ... }
#pragma once

#include <cstdint>

namespace gdn {

// Standard streams that are closed are opened to /dev/null. A write to a pipe that nobody reads is an error, not the
// end: what a server logs is not worth its sessions. A write past the limit on file sizes (ulimit -f) is an error too.
// The process may have as many descriptors as it may allow itself.
// Freed memory is kept: a server takes messages of megabytes, and memory that went back to the system comes anew page
// by page, which costs more than the copy into it. So each heap of the allocator grows to the most that was ever taken
// of it at once; there is one a processor, where glibc would have eight. Abseil's search for lock cycles is off:
// distributions build its library with it on, where every lock and unlock of every thread looks into one table. Tests
// have it on.
void SetUpServerProcess();

// How many descriptors the process may have.
int64_t DescriptorLimit();

}  // namespace gdn
