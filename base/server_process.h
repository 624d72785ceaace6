// Settings of a process that serves.
//
// Thread safety: call first in main, before any thread is made.
//
//   int main() { gdn::SetUpServerProcess(); ... }
#pragma once

namespace gdn {

// Freed memory is kept: a server takes messages of megabytes, and memory that went back to the system comes anew page
// by page, which costs more than the copy into it. So each heap of the allocator grows to the most that was ever taken
// of it at once; there is one a processor, where glibc would have eight.
// Abseil's search for lock cycles is off: distributions build its library with it on, where every lock and unlock of
// every thread looks into one table. Tests have it on.
void SetUpServerProcess();

}  // namespace gdn
