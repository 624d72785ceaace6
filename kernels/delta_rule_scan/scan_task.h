// One worker's share of a scan: a slice of value columns of one head, for a run of tokens of one sequence.
//
// Thread safety: a plain value. Ownership: none; it points into the call's tensors, a slot and a worker's scratch.
//
//   ScanTask task{.params = params, .hv = 3, .first = 0, .end = 12, .key_dim = K, .column = 32, .columns = 32, ...};
#pragma once

#include <cstdint>

#include "kernels/common/delta_rule.h"

namespace gdn {

struct ScanTask {
  const DeltaRuleParams& params;
  int64_t hv;
  int64_t first;  // token
  int64_t end;
  int64_t key_dim;
  int64_t column;   // first value column
  int64_t columns;  // number of columns, at most two vectors
  float* state;     // [K, slice]
  int64_t state_row;
  float* factors;  // scratch of ScanFactorFloats floats
};

// Floats for the decays of two tokens and one decayed key; 0 unless decays go by channel.
inline int64_t ScanFactorFloats(const LayerDims& dims) {
  return dims.decays_by_channel() ? 3 * int64_t{dims.key_dim} : 0;
}

}  // namespace gdn
