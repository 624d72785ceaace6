// Suite "phases", from single elements to the whole delta rule: the primitives first (phases 1 to 4), then the steps of a
// chunk put together from them (5 to 8), so that the first phase that fails says where to look.
//
// Thread safety: free functions.
//
//
//   AddChunkPhases(cases);
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {

inline ParityCase PhaseCase(int phase, std::string test, std::string shape, double tolerance,
                            std::function<absl::StatusOr<Difference>(Backend&, RandomTensor&)> run) {
  return {.suite = "phases",
          .test = std::move(test),
          .shape = std::move(shape),
          .tolerance = tolerance,
          .run = std::move(run),
          .max_tolerance = tolerance,
          .phase = phase,
          .gpu_only = true};
}

void AddChunkPhases(std::vector<ParityCase>& cases);  // 5 .. 8

}  // namespace gdn::parity
