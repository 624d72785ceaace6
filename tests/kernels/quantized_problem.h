// Projections of random quantised weights, run on a backend and by the reference.
//
// Thread safety: none. Ownership: a Problem's params point into it; keep it where it is.
//
//   Problem problem(WeightFormat::kQ4_K, /*rows=*/2, /*outputs=*/70, /*features=*/512);
//   EXPECT_LE(RelativeNormError(Project(problem.params, backend()), Expected(problem.params)), kTolerance);
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/projection/projection.h"
#include "kernels/projection/random_weights.h"
#include "tests/support/random.h"
#include "tests/support/test_backend.h"

namespace gdn {

inline constexpr double kTolerance = 1e-6;  // of exact products, against sums in double
inline constexpr float kUntouched = -7.0f;
inline constexpr ProjectionPath kPaths[] = {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm};

inline std::vector<WeightFormat> QuantisedFormats() {
  std::vector<WeightFormat> formats;
  for (const WeightFormat format : kWeightFormats) {
    if (!IsPlain(format)) formats.push_back(format);
  }
  return formats;
}

struct Problem {
  Problem(WeightFormat format, int64_t rows, int64_t outputs, int64_t features)
      : weights(MakeRandomWeights(format, outputs, features, /*seed=*/3)), x(Random(5).Normal(rows * (features + 4))) {
    params = {
        .rows = rows, .x = x.data(), .x_stride = features + 4, .weight = weights.matrix(), .y_stride = outputs + 3};
  }

  // The same with the weights' values in float32.
  ProjectionParams Widened() {
    const int64_t cols = weights.cols;
    values.resize(static_cast<size_t>(weights.rows * cols));
    for (int64_t row = 0; row < weights.rows; ++row) WeightRow(weights.matrix(), row, values.data() + row * cols);
    ProjectionParams widened = params;
    widened.weight = PlainMatrix(DType::kF32, values.data(), weights.rows, cols);
    return widened;
  }

  RandomWeights weights;
  std::vector<float> x, values;
  ProjectionParams params;
};

// A problem of inputs that are rounded to int8.
struct Int8Problem : Problem {
  Int8Problem(WeightFormat format, int64_t rows, int64_t outputs, int64_t features)
      : Problem(format, rows, outputs, features) {
    params.math = ProductMath::kInt8;
  }
};

template <typename Operator>
std::vector<float> Project(ProjectionParams params, Operator run) {
  std::vector<float> y(static_cast<size_t>(params.rows * params.y_stride), kUntouched);
  params.y = y.data();
  EXPECT_EQ(run(params), absl::OkStatus());
  return y;
}
// Weights in the backend's own order.
inline absl::Status ProjectPacked(ProjectionParams params, Backend& backend) {
  const WeightMatrix& weight = params.weight;
  if (IsPlain(weight.format) && !LiesAsHalves(weight)) return backend.Projection(params);
  const auto bytes = static_cast<size_t>(backend.WeightBytes(weight));
  GDN_ASSIGN_OR_RETURN(const DeviceBuffer packed, DeviceBuffer::Make(backend, bytes));
  GDN_RETURN_IF_ERROR(backend.CopyWeightsIn(packed.data(), weight));
  params.weight.data = packed.data();
  GDN_RETURN_IF_ERROR(backend.Projection(params));
  return backend.Synchronize();
}
inline std::vector<float> Project(const ProjectionParams& params, Backend& backend) {
  return Project(params, [&](const ProjectionParams& p) { return ProjectPacked(p, backend); });
}
inline std::vector<float> Expected(const ProjectionParams& params) {
  return Project(params, [](const ProjectionParams& p) {
    ProjectionReference(p);
    return absl::OkStatus();
  });
}

// Fixture of a test of each format that the backend takes.
class QuantizedProjection : public BackendTest {
 protected:
  std::vector<WeightFormat> Taken() {
    std::vector<WeightFormat> formats;
    for (const WeightFormat format : QuantisedFormats()) {
      if (backend().info().TakesWeights(format)) formats.push_back(format);
    }
    return formats;
  }
};

}  // namespace gdn
