// Rows of projection, for both paths and every dtype of weights.

#include <cmath>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "kernels/projection/random_weights.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

// All combinations of rows and outputs.
struct Shapes {
  std::vector<int64_t> rows, outputs;
  int64_t features = 0;
  int64_t x_gap = 0, y_gap = 0;  // floats between rows, which a kernel leaves alone
  int misalign = 0;              // elements that the weights lie past an aligned address
  bool narrow = false;           // x on the backend has the weights' dtype; BF16 with quantised weights
};

// Rounds x to what `dtype` has, and returns it in that dtype.
std::vector<char> RoundTo(DType dtype, std::vector<float>& x) {
  std::vector<char> stored(x.size() * DTypeSize(dtype));
  ConvertFromFloat(x.data(), x.size(), dtype, stored.data());
  ConvertToFloat(dtype, stored.data(), x.size(), x.data());
  return stored;
}

CaseResult RunShape(ProjectionPath path, DType dtype, const Shapes& s, int64_t rows, int64_t outputs, Backend& backend,
                    RandomTensor& random, OutputPair& outputs_of_case) {
  using Params = ProjectionParams;
  const int64_t x_stride = s.features + s.x_gap;
  const int64_t y_stride = outputs + s.y_gap;
  std::vector<float> x = random.Normal(rows * x_stride);
  const DType x_dtype = s.narrow ? dtype : DType::kF32;
  const std::vector<char> stored_x = RoundTo(x_dtype, x);
  const std::vector<float> w = random.Normal(outputs * s.features);
  const size_t shift = s.misalign * DTypeSize(dtype);
  std::vector<char> stored(shift + w.size() * DTypeSize(dtype));
  ConvertFromFloat(w.data(), w.size(), dtype, stored.data() + shift);
  std::vector<float> y(rows * y_stride, 0.5f);
  for (int64_t row = 0; row < rows; ++row) std::fill_n(y.begin() + row * y_stride, outputs, NAN);
  WeightMatrix matrix = PlainMatrix(dtype, stored.data() + shift, outputs, s.features);
  const std::vector<float> row_scales = backend.info().RowScalesFor(matrix);
  if (!row_scales.empty()) matrix.scales = row_scales.data();
  return OperatorCall<Params>("", {},
                              {.path = path,
                               .math = backend.info().math,
                               .rows = rows,
                               .x_stride = x_stride,
                               .weight = matrix,
                               .y_stride = y_stride})
      .In(&Params::x, "x", {rows, x_stride}, std::move(x))
      .InOut(&Params::y, "y", {rows, y_stride}, std::move(y))
      .PoolOutputs(outputs_of_case)
      .Run(backend, ProjectionReference, [&](Backend& on, Params params) -> absl::Status {
        BackendData data(on);
        GDN_ASSIGN_OR_RETURN(char* weight, data.Poisoned<char>(shift + on.WeightBytes(matrix)));
        GDN_RETURN_IF_ERROR(on.CopyWeightsIn(weight + shift, matrix));
        params.weight.data = weight + shift;
        if (s.narrow) {
          GDN_ASSIGN_OR_RETURN(const char* narrow_x, data.Upload(stored_x));
          params.x = {narrow_x, x_dtype};
        }
        if (!row_scales.empty()) {
          GDN_ASSIGN_OR_RETURN(params.weight.scales, data.Upload(row_scales));
        }
        GDN_RETURN_IF_ERROR(on.Projection(params));
        return on.Synchronize();
      });
}

CaseResult RunProjection(ProjectionPath path, DType dtype, const Shapes& s, Backend& backend, RandomTensor& random) {
  OutputPair outputs_of_case;
  for (const int64_t rows : s.rows) {
    for (const int64_t outputs : s.outputs) {
      GDN_RETURN_IF_ERROR(RunShape(path, dtype, s, rows, outputs, backend, random, outputs_of_case).status());
    }
  }
  return Compare(outputs_of_case.actual, outputs_of_case.expected);
}

// Quantised weights, which a backend may have in an order of its own.
CaseResult RunQuantised(ProjectionPath path, WeightFormat format, const Shapes& s, Backend& backend,
                        RandomTensor& random) {
  using Params = ProjectionParams;
  OutputPair outputs_of_case;
  for (const int64_t rows : s.rows) {
    for (const int64_t outputs : s.outputs) {
      const RandomWeights weights =
          MakeRandomWeights(format, outputs, s.features, static_cast<uint32_t>(rows * 1000 + outputs));
      Params params{.path = path,
                    .math = backend.info().math,
                    .rows = rows,
                    .x_stride = s.features + s.x_gap,
                    .weight = weights.matrix(),
                    .y_stride = outputs + s.y_gap};
      params.weight.integer_halves = backend.info().IntegerHalvesFor(format);
      std::vector<float> x = random.Normal(rows * params.x_stride);
      const DType x_dtype = s.narrow ? DType::kBF16 : DType::kF32;
      const std::vector<char> stored_x = RoundTo(x_dtype, x);
      std::vector<float> y(rows * params.y_stride, 0.5f);
      for (int64_t row = 0; row < rows; ++row) std::fill_n(y.begin() + row * params.y_stride, outputs, NAN);
      const CaseResult result =
          OperatorCall<Params>("", {}, params)
              .In(&Params::x, "x", {rows, params.x_stride}, std::move(x))
              .InOut(&Params::y, "y", {rows, params.y_stride}, std::move(y))
              .PoolOutputs(outputs_of_case)
              .Run(backend, ProjectionReference, [&](Backend& on, Params on_backend) -> absl::Status {
                BackendData data(on);
                const int64_t bytes = on.WeightBytes(weights.matrix());
                GDN_ASSIGN_OR_RETURN(char* weight, data.Poisoned<char>(bytes));
                GDN_RETURN_IF_ERROR(on.CopyWeightsIn(weight, weights.matrix()));
                on_backend.weight.data = weight;
                if (!weights.scales.empty()) {
                  GDN_ASSIGN_OR_RETURN(on_backend.weight.scales, data.Upload(weights.scales));
                }
                if (s.narrow) {
                  GDN_ASSIGN_OR_RETURN(const char* narrow_x, data.Upload(stored_x));
                  on_backend.x = {narrow_x, x_dtype};
                }
                GDN_RETURN_IF_ERROR(on.Projection(on_backend));
                return on.Synchronize();
              });
      GDN_RETURN_IF_ERROR(result.status());
    }
  }
  return Compare(outputs_of_case.actual, outputs_of_case.expected);
}

}  // namespace

void AddProjectionCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, ProjectionPath path, DType dtype, const Shapes& s,
                            const std::string& note) {
    const char* name = path == ProjectionPath::kRowStable ? "row_stable" : "sequence_gemm";
    cases.push_back({suite, absl::StrCat("projection_", name, "_", std::string(DTypeName(dtype))),
                     absl::StrCat("rows=", absl::StrJoin(s.rows, ","), " W=[", absl::StrJoin(s.outputs, "|"), ",",
                                  s.features, "]", note),
                     kProjectionTolerance, std::bind_front(RunProjection, path, dtype, s)});
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
      for (const Shapes& s : {Shapes{{1}, {256}, 512, 3, 5}, Shapes{{9}, {67}, 129, 3, 5},
                              Shapes{{70}, {300}, 200, 3, 5}, Shapes{{33}, {1}, 7, 3, 5}}) {
        add("layer_ops", path, dtype, s, "");
      }
      if (dtype != DType::kF32) {
        add("layer_ops", path, dtype, {{1, 2, 4, 8, 9, 40}, {131}, 328, 4, 5, 0, /*narrow=*/true}, " x of its dtype");
      }
      // Every tail of rows, outputs and features; no gaps between rows, so that vectors are aligned where they can be.
      for (const int64_t features : {1, 7, 16, 33, 128}) {
        add("shapes", path, dtype, {{1, 2, 3, 4, 5, 6, 7, 13, 31, 70}, {1, 3, 4, 37, 300}, features, 2, 3}, " gaps");
      }
    }
    for (const int64_t features : {8, 33, 136, 1100}) {
      add("shapes", ProjectionPath::kRowStable, dtype, {{1, 2, 3, 8, 11}, {37}, features}, "");
    }
    for (const int64_t features : {31, 72}) {
      add("shapes", ProjectionPath::kSequenceGemm, dtype, {{40, 257}, {1, 130}, features}, "");
    }
    for (const int misalign : {0, 1}) {
      const int64_t gap = 4 - misalign;
      const std::string note = misalign > 0 ? " gaps, misaligned" : " gaps";
      add("shapes", ProjectionPath::kRowStable, dtype, {{5}, {21}, 40, gap, gap, misalign}, note);
      add("shapes", ProjectionPath::kSequenceGemm, dtype, {{256}, {21}, 40, gap, gap, misalign}, note);
    }
  }
  for (const WeightFormat format : kWeightFormats) {
    if (IsPlain(format)) continue;
    for (const ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
      const char* name = path == ProjectionPath::kRowStable ? "row_stable" : "sequence_gemm";
      for (const Shapes& s : {Shapes{{1, 2, 3, 9}, {1, 67}, 256, 4, 5}, Shapes{{1, 40}, {131}, 768, 4, 0},
                              Shapes{{1, 3, 8, 40}, {131}, 768, 4, 0, 0, /*narrow=*/true}}) {
        cases.push_back({"shapes", absl::StrCat("projection_", name, "_", std::string(WeightFormatName(format))),
                         absl::StrCat("rows=", absl::StrJoin(s.rows, ","), " W=[", absl::StrJoin(s.outputs, "|"), ",",
                                      s.features, "]", s.narrow ? " x of BF16" : ""),
                         kProjectionTolerance, std::bind_front(RunQuantised, path, format, s)});
        cases.back().integer_weights = HasIntegerWeights(format);
      }
    }
  }
  // Enough outputs for two and for four a thread, and x in more than one piece.
  add("shapes", ProjectionPath::kRowStable, DType::kBF16, {{1, 2, 4, 7}, {60, 300}, 72}, "");
  add("shapes", ProjectionPath::kRowStable, DType::kBF16, {{1}, {3}, 4232}, "");
  add("shapes", ProjectionPath::kSequenceGemm, DType::kBF16, {{256}, {8}, 1024}, "");
}

}  // namespace gdn::parity
