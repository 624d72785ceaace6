// `gdn_bench drift --math=int8`: how far a layer in int8 products is from the same layer in exact ones, over a long
// decode, on the CPU.
//
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(const std::vector<MathDriftRow> rows, RunMathDriftBench({.tokens = 100'000}));
//   std::fputs(MathDriftTable(rows).c_str(), stdout);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/weight_format.h"
#include "nlohmann/json.hpp"
#include "tools/gdn_bench/drift_bench.h"

namespace gdn::bench {

struct MathDriftRow {
  WeightFormat weights = WeightFormat::kQ8_0;
  int64_t tokens = 0;
  DriftErrors errors;  // of int8 products, relative to exact ones
};

// Returns rows at 1,000, 10,000, .. and options.tokens tokens, for a layer of Q8_0 and one of Q4_K, of Qwen3-Next's
// dimensions with random weights and hidden states. Errors of the CPU backend.
absl::StatusOr<std::vector<MathDriftRow>> RunMathDriftBench(const DriftOptions& options);

std::string MathDriftTable(const std::vector<MathDriftRow>& rows);
nlohmann::ordered_json MathDriftJson(const std::vector<MathDriftRow>& rows);

}  // namespace gdn::bench
