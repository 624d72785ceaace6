// The instruction set the SIMD operators run on.
//
// Thread safety: free function. Chosen by Highway at run time, the same for every operator.
//
//   std::string name = SimdTargetName();  // "avx3"
#pragma once

#include <string>

namespace gdn {

// Highway's name for the target, in lower case.
std::string SimdTargetName();

}  // namespace gdn
