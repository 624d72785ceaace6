// Counts the resources that a program acquires, and can make acquisitions fail, for tests: memory; streams, events and
// graphs on a GPU or the host executor; kernels' code on the executor.
//
// The host executor's runtime calls this for its objects. Memory, and the objects of a GPU's runtime, are counted if
// the program is linked with gdn_wraps_allocations of tests/CMakeLists.txt.
// Thread safety: any thread. Ownership: one counter for the process.
//
//   Acquisitions::Fail({.first = 3});  // the fourth acquisition from now on fails, and no other
//   ... the call ...
//   const int64_t asked = Acquisitions::Stop();  // above 3: the fourth was reached and failed
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
    bool all_after = false;                               // every acquisition after the first failure fails too
  };
  // Starts to count acquisitions of all threads from 0, and makes those that `failing` names fail, until Stop.
  static void Fail(const Failing& failing);
  // Ends counting and failures. Returns the number of acquisitions since Fail, also of failed ones; -1 without a Fail.
  static int64_t Stop();

  // Counts an acquisition that is about to happen. Returns false if it must fail; always true outside Fail .. Stop.
  static bool MayAcquire();
  // Counts an acquisition of `what` (words for the message), as MayAcquire. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED)
  // if it must fail.
  static absl::Status Acquire(const char* what);
  // Acquires a kernel's code at its first launch (by name) in the process; OK, and not counted, if it is loaded. After
  // a failure the next launch counts again.
  static absl::Status AcquireCode(const std::string& kernel);
  // Makes the next launch of every kernel load its code again, as in a new process.
  static void ForgetCode();
};

}  // namespace gdn
