// `gdn_bench drift`: measures the errors of decoding many tokens relative to double precision, on the CPU, with bases
// of float32 and of bfloat16.
//
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(const std::vector<DriftRow> rows, RunDriftBench({.tokens = 100'000}));
//   std::fputs(DriftTable(rows).c_str(), stdout);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace gdn::bench {

struct DriftOptions {
  int64_t tokens = 100'000;
  uint64_t seed = 1;
};

// Euclidean errors relative to the result in double precision.
struct DriftErrors {
  double output = 0;  // error of the outputs since the row before (at most of its last 1,000 tokens)
  double state = 0;   // error of the state after the row's tokens
};

struct DriftRow {
  std::string inputs;
  int64_t tokens = 0;
  DriftErrors f32;
  DriftErrors bf16;
};

// Returns rows at 1,000, 10,000, .. and options.tokens tokens, for each kind of inputs; none for 0 tokens. Runs on
// the CPU backend, and returns its errors.
absl::StatusOr<std::vector<DriftRow>> RunDriftBench(const DriftOptions& options);

std::string DriftTable(const std::vector<DriftRow>& rows);
nlohmann::ordered_json DriftJson(const std::vector<DriftRow>& rows);

}  // namespace gdn::bench
