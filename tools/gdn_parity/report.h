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

// The cases of `suite` (empty: all) named `test` (empty: all), of `phase` (0: all). INVALID_ARGUMENT, saying what there
// is, where none is left.
absl::StatusOr<std::vector<ParityCase>> SelectCases(const std::vector<ParityCase>& cases, const std::string& suite,
                                                    const std::string& test, int phase = 0);

// One line a suite and test, with the number of shapes.
void ListCases(const std::vector<ParityCase>& cases, std::ostream& out);

struct Summary {
  int passed = 0;
  int failed = 0;
  int not_offered = 0;  // cases that launch GPU kernels, on a backend that has no stream for them
};

// A row a case, as it finishes, and "N passed, M failed, S not offered by this backend". A case passes where both
// measures are within their tolerances; one that returns an error fails. A case's inputs depend on
// `seed` and its own name alone, so one run by itself sees what it saw among others.
Summary RunCases(const std::vector<ParityCase>& cases, Backend& backend, uint64_t seed, std::ostream& out);

}  // namespace gdn::parity
