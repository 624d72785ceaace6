// Descriptors 0, 1 and 2, which may be closed when a program starts.
//
// Thread safety: call first in main, before any thread is made.
//
//   int main() { gdn::OpenStandardStreams(); ... }
#pragma once

namespace gdn {

// Opens /dev/null for each of the three descriptors that is closed. Otherwise the next file that the program opens gets
// that descriptor's number, and the program's output goes into the file.
void OpenStandardStreams();

}  // namespace gdn
