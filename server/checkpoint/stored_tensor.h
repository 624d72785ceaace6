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

// INVALID_ARGUMENT (INVALID_TENSOR_DATA) where a quantised tensor has a factor that is not finite: no quantiser writes
// one, so the file is damaged, and all weights of the block would be none. Reads all blocks.
absl::Status CheckQuantisation(const StoredTensor& tensor);

// All elements, in order.
void DecodeTensor(const StoredTensor& tensor, float* out);

}  // namespace gdn
