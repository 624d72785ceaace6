// A tensor of a layer in the form in which its file stores it, and its elements as float32.
//
// Plain tensors have one of base/dtype.h's types, which kernels read as they lie. The others are quantised: decoded
// when a model is loaded, each element by its format's formula in float32: GGUF's blocks by gguf_blocks.h, and
//   F8_E4M3   w[i, j] = e4m3[i, j] * scales[i / 128, j / 128]; edge blocks may be partial
// E4M3 (the FN kind): a sign, 4 exponent bits of bias 7, 3 mantissa bits; largest 448; 0x7f and 0xff are NaN; no
// infinity.
// Source: https://arxiv.org/abs/2209.05433
// Thread safety: plain values and free functions. Ownership: none; the bytes must outlive it.
//
//   std::vector<float> values(tensor.ElementCount());
//   DecodeTensor(tensor, values.data());
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"

namespace gdn {

enum class Encoding : uint8_t { kF32, kF16, kBF16, kF8E4M3, kQ8_0, kQ4_0, kQ4_K, kQ5_K, kQ6_K };

// "F32", "F8_E4M3", as their formats call them.
std::string_view EncodingName(Encoding encoding);

inline constexpr int64_t kFp8Block = 128;  // rows and columns that share a scale

// The shape of a matrix's scales.
std::vector<int64_t> Fp8BlocksOf(const std::vector<int64_t>& shape);

struct StoredTensor {
  Encoding encoding = Encoding::kF32;
  std::vector<int64_t> shape;  // row-major
  std::string_view data;
  TensorView scales = {};  // of kF8E4M3: [ceil(N / 128), ceil(M / 128)]

  int64_t ElementCount() const;
};

// Of a dtype that kernels read.
StoredTensor PlainTensor(const TensorView& view);
bool IsPlain(const StoredTensor& tensor);

// What its elements are once they are loaded: the dtype of a plain tensor, else F32.
DType LoadedDType(const StoredTensor& tensor);

// All elements, in order.
void DecodeTensor(const StoredTensor& tensor, float* out);

float E4M3ToFloat(uint8_t bits);

}  // namespace gdn
