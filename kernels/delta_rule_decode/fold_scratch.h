// How much scratch a worker needs to fold a log of one value head on the CPU: keys times their factors, and the u's.
//
// Thread safety: free function.
//
//   WorkerScratch::Make(threads, FoldScratchFloats(dims, kLogCapacity));
#pragma once

#include <cstdint>

#include "base/layer_dims.h"

namespace gdn {

inline int64_t FoldScratchFloats(const LayerDims& dims, int64_t entries) {
  return entries * (int64_t{dims.key_dim} + dims.value_dim);
}

}  // namespace gdn
