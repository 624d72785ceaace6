// Choosing, running and reporting parity cases.
//
// Thread safety: for one thread.
//
//   GDN_ASSIGN_OR_RETURN(auto chosen, SelectCases(AllCases(), suite, test));
//   const Summary summary = RunCases(chosen, backend, seed, std::cout);
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {

// The cases of `suite` (empty: all) named `test` (empty: all). INVALID_ARGUMENT, saying what there is, where none is
// left.
absl::StatusOr<std::vector<ParityCase>> SelectCases(const std::vector<ParityCase>& cases, const std::string& suite,
                                                    const std::string& test);

// One line a suite and test, with the number of shapes.
void ListCases(const std::vector<ParityCase>& cases, std::ostream& out);

struct Summary {
  int passed = 0;
  int failed = 0;
};

// A row a case, as it finishes, and "N passed, M failed". A case that returns an error fails. A case's inputs depend on
// `seed` and its own name alone, so one run by itself sees what it saw among others.
Summary RunCases(const std::vector<ParityCase>& cases, Backend& backend, uint64_t seed, std::ostream& out);

}  // namespace gdn::parity
