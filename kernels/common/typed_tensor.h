// Pointers to tensors in backend memory with elements of any dtype. float pointers convert implicitly.
//
// Thread safety: plain values. Ownership: none.
//
//   InputTensor x = floats;
//   InputTensor y = {bytes, DType::kBF16};
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace gdn {

struct InputTensor {
  const void* data = nullptr;  // aligned to DTypeSize(dtype)
  DType dtype = DType::kF32;

  InputTensor() = default;
  InputTensor(const float* floats) : data(floats) {}  // NOLINT(google-explicit-constructor): most tensors are floats
  InputTensor(const void* its_data, DType its_dtype) : data(its_data), dtype(its_dtype) {}

  const float* floats() const { return static_cast<const float*>(data); }  // only if dtype is kF32
  InputTensor From(int64_t element) const {
    if (data == nullptr) return *this;
    return {static_cast<const char*>(data) + element * static_cast<int64_t>(DTypeSize(dtype)), dtype};
  }
};

struct OutputTensor {
  void* data = nullptr;  // aligned to DTypeSize(dtype)
  DType dtype = DType::kF32;

  OutputTensor() = default;
  OutputTensor(float* floats) : data(floats) {}  // NOLINT(google-explicit-constructor): most tensors are floats
  OutputTensor(void* its_data, DType its_dtype) : data(its_data), dtype(its_dtype) {}

  float* floats() const { return static_cast<float*>(data); }  // only if dtype is kF32
  OutputTensor From(int64_t element) const {
    if (data == nullptr) return *this;
    return {static_cast<char*>(data) + element * static_cast<int64_t>(DTypeSize(dtype)), dtype};
  }
};

}  // namespace gdn
