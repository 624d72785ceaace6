// The delta rule, token by token, in place on the base state. The logs must be empty.
//
// Used for short prefills. With one token a sequence it is the classic recurrent step, which reads and writes the whole
// state.
// Formula: kernels/common/delta_rule.h. Cost: 3 K V multiply-adds a token and value head.
// Thread safety: concurrent calls must use different slots. Bits: a sequence's results do not depend on the other
// sequences of the call.
//
//   GDN_RETURN_IF_ERROR(backend.DeltaRuleScan(params));
#pragma once

#include "base/threads/thread_pool.h"
#include "kernels/common/delta_rule.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// Double-precision reference on host memory; params must be valid. States have the layout's dtype and are rounded as it
// says; all else is double. Slow and simple.
void DeltaRuleScanReference(const DeltaRuleParams& params);

// Computes with SIMD on the CPU and returns when done; params must be valid. A task of `pool` is one (sequence, value
// head, column slice).
absl::Status DeltaRuleScanCpu(const DeltaRuleParams& params, ThreadPool& pool);

// Issues the kernel on `stream`; params must be valid. Bases are [HV][V][K] in device memory. `batch` is params.batch
// with its arrays on the device.
absl::Status DeltaRuleScanGpu(const DeltaRuleParams& params, const gpu::DeviceBatch& batch, const gpu::Stream& stream);

}  // namespace gdn
