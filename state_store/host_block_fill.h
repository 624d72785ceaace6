// Tests choose the bytes that blocks of HostBlockPools hold when they are taken.
//
// Thread safety: safe from any thread; of the whole process.
//
//   FillHostBlocksForTesting(0xa5);
#pragma once

namespace gdn {

// From now on every block is filled with this byte when it is taken, so that memory of one caller that reaches another
// is seen. Negative: blocks hold what was in them, as they do outside tests.
void FillHostBlocksForTesting(int byte);

}  // namespace gdn
