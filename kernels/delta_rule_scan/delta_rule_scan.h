// The delta rule, token by token, in place on the base state. The log must be empty.
//
// The short-prefill path, and (with one token a sequence) the classic recurrent step that reads and writes the whole
// state.
// Formula: kernels/common/delta_rule.h. Cost: 3 K V multiply-adds a token and value head.
// Thread safety: as many calls at a time as touch different slots. Bits: a sequence's results do not depend on its
// companions.
//
//   GDN_RETURN_IF_ERROR(backend.DeltaRuleScan(params));
#pragma once

#include "base/thread_pool.h"
#include "kernels/common/delta_rule.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// Double-precision reference on host memory; states are read and written, and rounded, as the layout says, all else is
// double. Slow and plain.
void DeltaRuleScanReference(const DeltaRuleParams& params);

// SIMD, one (sequence, value head, column slice) a task.
absl::Status DeltaRuleScanCpu(const DeltaRuleParams& params, ThreadPool& pool);

// Bases are [HV][V][K] in device memory. params.batch is the host's view of `batch`, whose arrays are the device's.
absl::Status DeltaRuleScanGpu(const DeltaRuleParams& params, const gpu::DeviceBatch& batch, const gpu::Stream& stream);

}  // namespace gdn
