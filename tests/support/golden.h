// Golden vectors of the delta rule operator (tests/golden/core): inputs, and results that were computed in float64.
//
// Thread safety: free functions. Ownership: everything is copied out of the files.
//
//   GDN_ASSIGN_OR_RETURN(std::vector<GoldenCore> vectors, LoadGoldenCore(GDN_SOURCE_DIR "/tests/golden/core"));
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {

struct GoldenCore {
  std::string name;  // name of the file, without ".safetensors"
  int32_t sequences = 0;
  DeltaRuleInputs inputs;            // sequences of equal length laid end to end; q is scaled by K^-0.5
  std::vector<float> initial_state;  // [sequences, HV, K, V]
  std::vector<float> output;         // [sequences * length, HV, V], from float64
  std::vector<float> final_state;    // [sequences, HV, K, V], from float64

  int32_t length() const { return static_cast<int32_t>(inputs.tokens / sequences); }
};

// Loads every file of `directory`, sorted by name. NOT_FOUND if there is none. Errors of SafetensorsFile.
absl::StatusOr<std::vector<GoldenCore>> LoadGoldenCore(const std::string& directory);

}  // namespace gdn
