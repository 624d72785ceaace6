// The processors this process may use: what the operating system says of them, and which of their instructions the
// SIMD operators use.
//
// Thread safety: free functions.
//
//   int threads = AvailableProcessors();
#pragma once

#include <string>

namespace gdn {

// The model name, or "unknown processor".
std::string ProcessorName();

// Processors in this process's affinity mask, or fewer where a control group limits its processor time. At least 1.
int AvailableProcessors();

// Highway's name, in lower case, for the instruction set it chose at run time, the same for every operator: "avx3".
std::string SimdTargetName();

}  // namespace gdn
