// Settings of the process's heap.
//
// Thread safety: call first in main, before any thread is made.
//
//   int main() { gdn::KeepFreedMemory(); ... }
#pragma once

namespace gdn {

// For programs that take messages of megabytes: memory that is given back to the system after each is taken anew page
// by page, which costs more than the copy into it.
void KeepFreedMemory();

}  // namespace gdn
