// What the operating system says about the processors this process may use.
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

}  // namespace gdn
