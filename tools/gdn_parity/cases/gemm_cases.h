// Matrix products of the parity rows, with their layouts and gaps, for tests that modify a product before they run it.
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

// The parameters without their pointers, and the matrices.
struct GemmProblem {
  GemmParams params;
  std::vector<float> a, b, c;
};

// Makes random matrices. Gaps between rows of A and B are NaN, which no product may use; gaps of C must not change.
GemmProblem RandomGemm(GemmLayout layout, const GemmShape& shape, RandomTensor& random);

}  // namespace gdn::parity
