// Reference: the layer composed of the operators' float64 references, on host memory.
//
// Prefill and decode are the same: the state is advanced in place, token by token, without a log. Tensors between
// operators are float32, as each reference writes them. Slow and simple.
// Thread safety: concurrent calls must use different slots.
//
//   GDN_RETURN_IF_ERROR(GdnLayerReference(step));
#pragma once

#include "absl/status/status.h"
#include "kernels/layer/gdn_layer.h"

namespace gdn::parity {

// Computes one step of a layer on host memory, and advances its states. `math`: of its projections. Errors as of
// ValidateLayerStep.
absl::Status GdnLayerReference(const LayerStep& step, ProductMath math = ProductMath::kExact);

}  // namespace gdn::parity
