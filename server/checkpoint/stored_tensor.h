// A tensor of a layer in the form in which its file stores it, and its elements as float32.
//
// Thread safety: plain values and free functions. Ownership: none; the bytes must outlive it.
//
//   std::vector<float> values(tensor.ElementCount());
//   DecodeTensor(tensor, values.data());
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/tensor_view.h"
#include "base/weight_format.h"

namespace gdn {

struct StoredTensor {
  WeightFormat encoding = WeightFormat::kF32;
  std::vector<int64_t> shape;  // row-major
  std::string_view data;
  TensorView scales = {};  // of kF8E4M3: [ceil(N / 128), ceil(M / 128)]
  bool widened = false;    // float32 of a quantised one whose blocks were cut

  int64_t ElementCount() const;
};

// The shape of an F8_E4M3 matrix's scales.
std::vector<int64_t> Fp8BlocksOf(const std::vector<int64_t>& shape);

// Of a dtype that kernels read.
StoredTensor PlainTensor(const TensorView& view);

// Of an F8_E4M3 matrix.
std::vector<float> ScalesOf(const StoredTensor& tensor);

// Whether -infinity is a value that means something: in A_log, of which it makes a decay of 1.
enum class MinusInfinity : bool { kRefused, kTaken };

// INVALID_ARGUMENT (INVALID_TENSOR_DATA) if a weight is not finite, or a factor of a quantised block. Says which: the
// weight by its index, the factor by its block, counted over the tensor. Reads the whole tensor.
absl::Status CheckFinite(const StoredTensor& tensor, MinusInfinity minus_infinity = MinusInfinity::kRefused);

// All elements, in order.
void DecodeTensor(const StoredTensor& tensor, float* out);

}  // namespace gdn
