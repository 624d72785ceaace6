// This machine's processor: its name, and the SIMD instruction set that the operators use.
//
// Thread safety: free functions; see UseSimdTarget() for its own.
//
//   std::string name = SimdTargetName();
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gdn {

// Returns the processor's model name for people, or "unknown processor".
std::string ProcessorName();

// Returns Highway's name, in lower case, of the instruction set that it chose at run time for every operator: "avx3".
std::string SimdTargetName();

// Returns the versions of Highway and of the compiler, on which the bits of SIMD operators depend too:
// "hwy1.0.3-gcc12.2.0".
std::string SimdToolkitName();

// Makes all operators of the process use the instruction set of this name (as from SimdTargetName()); "" restores the
// best one. Does not affect oneDNN. INVALID_ARGUMENT, with the best one restored, if this processor or build does not
// have it. Do not call while operators run.
absl::Status UseSimdTarget(absl::string_view name);

}  // namespace gdn
