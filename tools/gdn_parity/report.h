// Selects, runs and reports parity cases.
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

// Returns the cases of `suite` (empty: all) named `test` (empty: all), of `phase` (0: all). INVALID_ARGUMENT if there
// is none; the message lists what there is.
absl::StatusOr<std::vector<ParityCase>> SelectCases(const std::vector<ParityCase>& cases, const std::string& suite,
                                                    const std::string& test, int phase = 0);

// Prints one line for each suite and test, with the number of shapes.
void ListCases(const std::vector<ParityCase>& cases, std::ostream& out);

struct Summary {
  int passed = 0;
  int failed = 0;
  // Cases that were not run: out of scope, without the GPU stream that they need, too large or too slow for the
  // backend, or refused by it (UNIMPLEMENTED).
  int not_offered = 0;
};

// Prints a row for each case when it finishes, and "N passed, M failed, S not offered by this backend". A case passes
// if both measures are within their tolerances. A case that returns an error fails, unless the backend does not offer
// it. A case's inputs depend only on `seed` and its own name, so it has the same inputs when it runs alone.
Summary RunCases(const std::vector<ParityCase>& cases, Backend& backend, uint64_t seed, std::ostream& out);

}  // namespace gdn::parity
