// Lets tests choose the bytes that blocks of every HostBlockPool hold when they are taken.
//
// Thread safety: safe from any thread; applies to the whole process.
//
//   FillHostBlocksForTesting(0xa5);
#pragma once

namespace gdn {

// From now on, every block is filled with this byte when it is taken, so that a test sees if a caller reads what
// another caller left there. Negative: blocks are not filled (the default).
void FillHostBlocksForTesting(int byte);

}  // namespace gdn
