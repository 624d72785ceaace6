// Zero output rows for padding sequences (host memory).
//
// Thread safety: free function; writes the output rows of sequences with a negative slot and nothing else.
//
//   ZeroPaddingRows(params);
#pragma once

#include <cstring>

#include "kernels/common/delta_rule.h"

namespace gdn {

inline void ZeroPaddingRows(const DeltaRuleParams& params) {
  const int64_t row = params.pool.layout.dims().value_features();
  for (int32_t i = 0; i < params.batch.sequences; ++i) {
    if (params.batch.slots[i] >= 0 || params.batch.length(i) == 0) continue;
    std::memset(params.output + params.batch.cu_seqlens[i] * row, 0,
                static_cast<size_t>(params.batch.length(i) * row) * sizeof(float));
  }
}

}  // namespace gdn
