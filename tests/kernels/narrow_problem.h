// A projection of BF16 or F16 inputs in exact products.
//
// Thread safety: none. Ownership: a problem's params point into it; keep it where it is.
//
//   NarrowProblem problem(WeightFormat::kBF16, /*rows=*/2, /*outputs=*/70, /*features=*/512);
//   EXPECT_LE(RelativeNormError(Project(problem.params, backend()), Expected(problem.params)), kTolerance);
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/quantized_problem.h"

namespace gdn {

struct NarrowProblem : Problem {
  // F32 weights are those of the BF16 matrix.
  NarrowProblem(WeightFormat format, int64_t rows, int64_t outputs, int64_t features, DType dtype = DType::kBF16)
      : Problem(format == WeightFormat::kF32 ? WeightFormat::kBF16 : format, rows, outputs, features), x_dtype(dtype) {
    if (format == WeightFormat::kF32) params.weight = Widened().weight;
    TakeScales();
    TakeX();
  }
  // Call these after changes of weights and of x.
  void TakeScales() {
    params.weight.integer_halves = HasHalfProducts(params.weight.format);
    if (!IsPlain(params.weight.format)) return;
    scales = RowScalesOf(params.weight, params.math);
    params.weight.scales = scales.empty() ? nullptr : scales.data();
  }
  void TakeX() {
    narrow.resize(x.size() * DTypeSize(x_dtype));
    ConvertFromFloat(x.data(), x.size(), x_dtype, narrow.data());
    params.x = {narrow.data(), x_dtype};
  }
  // Makes weight `index` of the matrix `value`, which its dtype has.
  void SetWeight(int64_t index, float value) {
    const DType dtype = WidenedDType(params.weight.format);
    auto* const data = dtype == DType::kF32 ? reinterpret_cast<uint8_t*>(values.data()) : weights.bytes.data();
    ConvertFromFloat(&value, 1, dtype, data + static_cast<size_t>(index) * DTypeSize(dtype));
    TakeScales();
  }

  DType x_dtype;
  std::vector<char> narrow;
  std::vector<float> scales;
};

}  // namespace gdn
