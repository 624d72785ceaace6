// A tensor of a layer in the form in which its file stores it, and its elements as float32.
//
// Thread safety: plain values and free functions. Ownership: none; the bytes must outlive it.
//
//   std::vector<float> values(tensor.ElementCount());
//   DecodeTensor(tensor, values.data());
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/tensor_view.h"
#include "base/weight_format.h"
#include "server/checkpoint/packed_weight.h"

namespace gdn {

struct StoredTensor {
  WeightFormat encoding = WeightFormat::kF32;
  std::vector<int64_t> shape;  // row-major
  std::string_view data;
  TensorView scales = {};  // of kF8E4M3: [ceil(N / 128), ceil(M / 128)]
  bool widened = false;    // float32 of a quantised one whose blocks were cut, or that no format has exactly
  // The file's bytes, if they are packed in a way that kernels do not read. `encoding` is then the format that Unpacked
  // makes; `data` is empty until it has done so.
  std::shared_ptr<const PackedWeight> packed = {};

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

// A packed tensor as `encoding` has it, whose new bytes go to the end of `made`; another one as it is.
StoredTensor Unpacked(const StoredTensor& tensor, std::deque<std::string>& made);

// The bytes that it takes in its file.
int64_t FileBytes(const StoredTensor& tensor);

// All elements, in order. Of a packed one, once it is unpacked.
void DecodeTensor(const StoredTensor& tensor, float* out);

}  // namespace gdn
