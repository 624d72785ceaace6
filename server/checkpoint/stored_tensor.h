// Holds a tensor of a layer as its file stores it (or converted, if kernels cannot read that form), and decodes its
// elements to float32.
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
  TensorView scales = {};  // scales of kF8E4M3: [ceil(N / 128), ceil(M / 128)]
  bool widened = false;    // float32 of a quantised tensor: its blocks were cut, or no other format has it exactly
  // Set if the file packs the tensor in a way that kernels do not read. `encoding` is then the format that Unpacked
  // converts to, and `data` is empty until then.
  std::shared_ptr<const PackedWeight> packed = {};

  int64_t ElementCount() const;
};

// Returns the shape of the scales of an F8_E4M3 matrix of shape [N, M]: [ceil(N / 128), ceil(M / 128)].
std::vector<int64_t> Fp8BlocksOf(const std::vector<int64_t>& shape);

// Makes a tensor of a view, in the view's dtype. Borrows the view's bytes.
StoredTensor PlainTensor(const TensorView& view);

// Returns all elements as float32.
std::vector<float> FloatsOf(const TensorView& view);

// Says if -infinity is allowed in a plain tensor. In A_log it means a decay factor of 1.
enum class MinusInfinity : bool { kRefused, kTaken };

// INVALID_ARGUMENT (INVALID_TENSOR_DATA) if a weight, or a factor of a quantised block, is not finite. The error names
// the weight by its index, the factor by its block, counted over the tensor. Reads the whole tensor. `minus_infinity`
// counts for plain tensors only.
absl::Status CheckFinite(const StoredTensor& tensor, MinusInfinity minus_infinity = MinusInfinity::kRefused);

// Unpacks a packed tensor to `encoding`. The new bytes are appended to `made`, and the result points into them. Returns
// any other tensor as it is.
StoredTensor Unpacked(const StoredTensor& tensor, std::deque<std::string>& made);

// Returns the bytes that the tensor takes in its file, with its scales; for a slice, those of its share.
int64_t FileBytes(const StoredTensor& tensor);

// Decodes all elements, in order, to `out`, which has space for ElementCount() floats. A packed tensor must be unpacked
// first.
void DecodeTensor(const StoredTensor& tensor, float* out);

}  // namespace gdn
