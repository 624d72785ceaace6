// `gdn_bench drift --math=int8` and `--math=half`: the difference of a layer in rounded products from the same layer in
// exact ones, over a long decode.
//
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(const std::vector<MathDriftRow> rows, RunMathDriftBench({{100'000}, ProductMath::kInt8}));
//   std::fputs(MathDriftTable(rows).c_str(), stdout);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/product_math.h"
#include "base/weight_format.h"
#include "nlohmann/json.hpp"
#include "tools/gdn_bench/drift_bench.h"

namespace gdn::bench {

struct MathDriftOptions : DriftOptions {
  ProductMath math = ProductMath::kExact;  // kInt8 or kHalf
  int gpu_device = 0;                      // kHalf: index among the devices that HIP_VISIBLE_DEVICES leaves
};

struct MathDriftRow {
  WeightFormat weights = WeightFormat::kQ8_0;
  int64_t tokens = 0;
  DriftErrors errors;  // of rounded products, relative to exact ones
};

// Returns rows at 1,000, 10,000, .. and options.tokens tokens, for layers of Qwen3-Next's dimensions with random
// weights and hidden states: of Q8_0 and of Q4_K with int8 products on the CPU, of BF16 and of F32 with fp16 products
// on the GPU. Errors of the backend: FAILED_PRECONDITION (DEVICE_UNSUPPORTED) without a GPU.
absl::StatusOr<std::vector<MathDriftRow>> RunMathDriftBench(const MathDriftOptions& options);

std::string MathDriftTable(const std::vector<MathDriftRow>& rows);
nlohmann::ordered_json MathDriftJson(const std::vector<MathDriftRow>& rows);

}  // namespace gdn::bench
