// libgdn_parity [cpu|gpu]: gdn_parity's rows of the delta rule through libgdn's C interface. Which form a prefill takes
// (chunked, or token after token) is libgdn's choice by its length, whatever a row is named after.
//
// Exit status: 0 all passed, 1 some failed, 2 there is no such backend.

#include <iostream>
#include <string>

#include "tests/capi/through_libgdn.h"
#include "tools/gdn_parity/parity_case.h"
#include "tools/gdn_parity/report.h"

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "cpu";
  const auto backend = gdn::MakeBackendThroughLibgdn(name);
  if (!backend.ok()) {
    std::cerr << "libgdn_parity: " << backend.status() << "\n";
    return 2;
  }
  return gdn::parity::RunCases(gdn::parity::AllCases(), **backend, /*seed=*/1, std::cout).failed == 0 ? 0 : 1;
}
