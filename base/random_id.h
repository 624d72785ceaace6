// Ids that cannot be guessed.
//
// Thread safety: free function. Randomness comes from the kernel (getrandom).
//
//   std::string id = RandomId();  // "9f86d081884c7d659a2feaa0c55ad015"
#pragma once

#include <string>

namespace gdn {

// Returns 128 random bits as 32 lower-case hexadecimal digits. Ends the process if the kernel gives no randomness.
std::string RandomId();

}  // namespace gdn
