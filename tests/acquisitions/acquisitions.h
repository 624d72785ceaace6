// The things that a program acquires and may be refused: memory, and on a GPU or the host executor streams, events and
// graphs; on the executor kernels' code too. A test counts these, and has some of them fail.
//
// The host executor's runtime asks here for its objects. Memory, and the objects of a GPU's runtime, ask here if the
// program is linked by gdn_wraps_allocations of tests/CMakeLists.txt.
// Thread safety: any thread. Ownership: one count for the process.
//
//   Acquisitions::Fail({.first = 3});  // the fourth from now on fails, and no other
//   ... the call ...
//   const int64_t asked = Acquisitions::Stop();  // above 3: one has failed
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"

namespace gdn {

class Acquisitions {
 public:
  struct Failing {
    int64_t first = std::numeric_limits<int64_t>::max();  // counted from 0
    bool all_after = false;                               // all that come after the first fail too
  };
  // Counts from now on.
  static void Fail(const Failing& failing);
  // None fails any more. How many were asked for.
  static int64_t Stop();

  // Called before each acquisition: false if it fails.
  static bool MayAcquire();
  // The same, as the error that it fails with: RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED).
  static absl::Status Acquire(const char* what);
  // The first launch of a kernel, by its name, brings its code to the device.
  static absl::Status AcquireCode(const std::string& kernel);
  // Code comes with the next launches again, as in a process that begins.
  static void ForgetCode();
};

}  // namespace gdn
