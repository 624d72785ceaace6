// The processors of this machine: their name, and which of their instructions the SIMD operators use.
//
// Thread safety: free functions; UseSimdTarget() as it says.
//
//   std::string name = SimdTargetName();
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gdn {

// The model name, or "unknown processor".
std::string ProcessorName();

// Highway's name, in lower case, for the instruction set it chose at run time, the same for every operator: "avx3".
std::string SimdTargetName();

// Versions of what else the SIMD operators' bits follow from, Highway and the compiler: "hwy1.0.3-gcc12.2.0".
std::string SimdToolkitName();

// From here on all operators use the instruction set of this name, as SimdTargetName() gives it; empty: the best again.
// oneDNN is not concerned. INVALID_ARGUMENT where this processor or build does not have it. Not beside operators that
// run.
absl::Status UseSimdTarget(absl::string_view name);

}  // namespace gdn
