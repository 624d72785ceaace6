// System calls that opening a ring needs, and the start of threads, each of which can be made to fail.
//
// The linker gives the callers in the program's own objects these functions (--wrap; tests/integration/CMakeLists.txt).
// Thread safety: any thread. Ownership: one counter for the process.
//
//   FailingCalls::Fail(3, "mmap");  // the fourth of these calls from now on fails, and no other
//   ... the opening ...
//   const std::optional<std::string> failed = FailingCalls::Stop();  // "mmap"; nullopt: there were fewer calls
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gdn {

class FailingCalls {
 public:
  // Counts the calls with this name from now on, from 0, in all threads, and makes number `number` fail: for want of
  // descriptors or memory, as the call would. Without a name calls with any name count; only one thread may make them
  // then, or the order, and so which call fails, is left to chance.
  static void Fail(int64_t number, const std::string& name = "");
  // Ends that. Returns the name of the call that failed.
  static std::optional<std::string> Stop();
};

}  // namespace gdn
