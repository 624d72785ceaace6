// A golden checkpoint with one packed matrix, and the matrix's weights by its format's formula, in double.
//
// Thread safety: a plain value.
//
//   PackedMatrix packed;
//   packed.Int4(/*group=*/32, /*symmetric=*/true, DType::kBF16);
//   packed.Erase("weight_scale");
//   const absl::Status status = ReadBack(packed.checkpoint).status();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/stored_tensor.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/random.h"

namespace gdn {

// The module whose weight is packed.
inline constexpr char kPackedModule[] = "model.layers.1.linear_attn.out_proj";

template <typename T>
TestTensor TensorOf(std::string dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {.shape = std::move(shape),
          .data = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)},
          .other_dtype = std::move(dtype)};
}

struct PackedMatrix {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_5_1");
  int64_t rows = 0, cols = 0;
  std::vector<double> expected;

  PackedMatrix();
  // Returns a tensor of the module, such as "weight_scale".
  TestTensor& operator[](std::string_view name);
  void Erase(std::string_view name);

  // Each method fills the module's tensors with random bytes, and sets the config. `scale_shape`: of a single scale, or
  // of one scale for each row.
  void Fp8(const std::vector<int64_t>& scale_shape, DType dtype);
  void Int8(DType dtype);
  void Int4(int64_t group, bool symmetric, DType dtype);
  void Nvfp4(bool modelopt);

 private:
  template <typename T>
  std::vector<T> Bits(int64_t count);
  std::vector<float> Scales(int64_t count);
  double& At(int64_t row, int64_t col) { return expected[static_cast<size_t>(row * cols + col)]; }

  Random random_{77};
};

// Writes the checkpoint, finds its layers, and unpacks the matrix.
struct ReadMatrix {
  WeightFormat encoding;
  bool packed;
  bool widened;
  std::vector<float> values;
};
absl::StatusOr<ReadMatrix> ReadBack(const TestCheckpoint& checkpoint);

}  // namespace gdn
