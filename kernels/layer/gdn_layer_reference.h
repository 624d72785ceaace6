// The layer as the composition of the operators' float64 references, on host memory.
//
// The same mathematics for prefill and decode: the state is advanced in place, token by token, and no log is kept.
// Tensors between operators are float32, as each reference writes them. Slow and plain.
// Thread safety: as many calls at a time as touch different slots.
//
//   GDN_RETURN_IF_ERROR(GdnLayerReference(step));
#pragma once

#include "absl/status/status.h"
#include "kernels/layer/gdn_layer.h"

namespace gdn {

// Errors of ValidateLayerStep.
absl::Status GdnLayerReference(const LayerStep& step);

}  // namespace gdn
