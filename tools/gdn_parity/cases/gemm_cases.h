// Products with the layouts and gaps of the rows, for tests that change one before they run it.
//
// Thread safety: plain values.
//
//   const GemmProblem problem = RandomGemm(GemmLayout::kNT, {.m = 64, .n = 64, .k = 64}, random);
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/primitives/gemm/gemm.h"
#include "tools/gdn_parity/random_tensor.h"

namespace gdn::parity {

struct GemmShape {
  int64_t m, n, k;
  int64_t batch = 1;
  int64_t padding = 0;  // floats between stored rows
};

// The parameters but for the pointers, and what they point at.
struct GemmProblem {
  GemmParams params;
  std::vector<float> a, b, c;
};

// Between the rows of A and B lies NaN, which no product may use. C is random: it is added to, or its gaps are to stay.
GemmProblem RandomGemm(GemmLayout layout, const GemmShape& shape, RandomTensor& random);

}  // namespace gdn::parity
