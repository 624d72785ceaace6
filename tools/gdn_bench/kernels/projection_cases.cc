// The layer's largest projection, [C, D]: few rows through the row-stable path, one prefill segment through the library
// GEMM. Every format of weights, and with integer weights also int8 inputs; on a GPU also products of fp16 numbers:
// those of --math=half, and the exact ones of BF16 inputs.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/product_math.h"
#include "base/status_macros.h"
#include "kernels/layer/gdn_layer.h"
#include "kernels/projection/random_weights.h"
#include "tools/gdn_bench/kernels/kernel_case.h"

namespace gdn::bench {
namespace {

constexpr int64_t kCpuDecodeRows[] = {1, 8, 32};
constexpr int64_t kGpuDecodeRows[] = {1, 8, 32, 128};
constexpr int64_t kCpuGemmRows[] = {512};
constexpr int64_t kGpuGemmRows[] = {512, 2048};
// These are measured for all numbers of rows, the others for the fewest and the most.
constexpr WeightFormat kMainFormats[] = {WeightFormat::kBF16, WeightFormat::kF32, WeightFormat::kQ8_0,
                                         WeightFormat::kQ4_K};

// One projection's form.
struct ProjectionForm {
  ProjectionPath path = ProjectionPath::kRowStable;
  WeightFormat format = WeightFormat::kBF16;
  ProductMath math = ProductMath::kExact;
  int64_t rows = 0;
  DType x = DType::kF32;

  std::string Name() const {
    return absl::StrCat(path == ProjectionPath::kRowStable ? "projection_row_stable/" : "projection_sequence_gemm/",
                        std::string(WeightFormatName(format)), std::string(Kind()), "/rows=", rows);
  }
  std::string_view Kind() const {
    if (math == ProductMath::kInt8) return "/int8";
    if (math == ProductMath::kHalf) return "/half";
    return x == DType::kF32 ? "" : "/narrow";
  }
};

struct ProjectionFixture {
  std::shared_ptr<DeviceBuffer> weights;  // [copies, C, D]
  DeviceBuffer scales;                    // of F8_E4M3, or of the rows, for all copies
  std::shared_ptr<DeviceBuffer> x;        // [rows, D]
  std::shared_ptr<DeviceBuffer> y;        // [rows, C]
};

absl::StatusOr<PreparedCase> PrepareProjection(const CaseSetting& setting, const ProjectionForm& form) {
  const auto [path, format, math, rows, x_dtype] = form;
  Backend& backend = setting.backend;
  const LayerDims dims = BenchLayerDims();
  const int64_t out = dims.conv_channels();
  const int64_t in = dims.hidden_size;
  RandomWeights weights = BenchWeights(format, out, in, /*seed=*/7);
  if (format == WeightFormat::kBF16 && (math == ProductMath::kHalf || x_dtype != DType::kF32)) {
    weights.scales = RowScalesOf(weights.matrix(), math);
  }
  const int64_t matrix_bytes = backend.WeightBytes(weights.matrix());
  // A model's layers have weights of their own, so a layer finds none of its own in the cache. A GEMM of many rows
  // reuses each weight enough not to care.
  const int64_t copies =
      path == ProjectionPath::kRowStable ? (setting.rotation_bytes + matrix_bytes - 1) / matrix_bytes : 1;
  auto fixture = std::make_shared<ProjectionFixture>();
  GDN_ASSIGN_OR_RETURN(fixture->weights, WeightBuffer(backend, weights.matrix(), copies));
  if (const size_t bytes = weights.scales.size() * sizeof(float); bytes > 0) {
    GDN_ASSIGN_OR_RETURN(fixture->scales, DeviceBuffer::Make(backend, bytes));
    GDN_RETURN_IF_ERROR(backend.CopyIn(fixture->scales.data(), weights.scales.data(), bytes));
  }
  GDN_ASSIGN_OR_RETURN(fixture->x, RandomBuffer(backend, rows * in, -1.0f, 1.0f, x_dtype));
  GDN_ASSIGN_OR_RETURN(fixture->y, RandomBuffer(backend, rows * out, 0.0f, 1.0f));
  const auto run = [=, &backend]() -> absl::Status {
    for (int64_t copy = 0; copy < copies; ++copy) {
      const char* data = static_cast<const char*>(fixture->weights->data()) + copy * matrix_bytes;
      GDN_RETURN_IF_ERROR(backend.Projection({.path = form.path,
                                              .math = form.math,
                                              .rows = form.rows,
                                              .x = {fixture->x->data(), form.x},
                                              .x_stride = in,
                                              .weight = {.format = form.format,
                                                         .data = data,
                                                         .rows = out,
                                                         .cols = in,
                                                         .scales = fixture->scales.floats(),
                                                         .integer_halves = HasHalfProducts(form.format)},
                                              .y = fixture->y->floats(),
                                              .y_stride = out}));
    }
    return absl::OkStatus();
  };
  return PreparedCase{.cost = ProjectionCost(rows, out, in, format),
                      .steps = copies,
                      .working_set_bytes = static_cast<double>(copies * matrix_bytes),
                      .run = run};
}

}  // namespace

std::vector<KernelCase> ProjectionCases(CaseList list) {
  const auto decode_rows =
      list == CaseList::kGpu ? absl::MakeConstSpan(kGpuDecodeRows) : absl::MakeConstSpan(kCpuDecodeRows);
  const auto gemm_rows = list == CaseList::kGpu ? absl::MakeConstSpan(kGpuGemmRows) : absl::MakeConstSpan(kCpuGemmRows);
  std::vector<KernelCase> cases;
  const auto add = [&cases](const ProjectionForm& form) {
    cases.push_back({form.Name(), [=](const CaseSetting& setting) { return PrepareProjection(setting, form); }});
  };
  const auto add_format = [&](WeightFormat format, ProductMath math) {
    const bool all = std::ranges::find(kMainFormats, format) != std::end(kMainFormats);
    for (const int64_t rows : decode_rows.first(all ? decode_rows.size() : 1)) {
      add({ProjectionPath::kRowStable, format, math, rows});
    }
    for (const int64_t rows : gemm_rows.first(all ? gemm_rows.size() : 1)) {
      add({ProjectionPath::kSequenceGemm, format, math, rows});
    }
  };
  for (const WeightFormat format : kMainFormats) add_format(format, ProductMath::kExact);
  for (const WeightFormat format : kWeightFormats) {
    if (std::ranges::find(kMainFormats, format) == std::end(kMainFormats)) add_format(format, ProductMath::kExact);
  }
  for (const WeightFormat format : kWeightFormats) {
    if (HasIntegerWeights(format)) add_format(format, ProductMath::kInt8);
  }
  if (list != CaseList::kGpu) return cases;
  const auto add_halves = [&add](ProjectionPath path, absl::Span<const int64_t> of_rows) {
    for (const auto& [math, x] :
         {std::pair(ProductMath::kHalf, DType::kF32), std::pair(ProductMath::kExact, DType::kBF16)}) {
      for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ4_K}) {
        for (const int64_t rows : of_rows) add({path, format, math, rows, x});
      }
    }
  };
  add_halves(ProjectionPath::kRowStable, decode_rows);
  add_halves(ProjectionPath::kSequenceGemm, gemm_rows);
  return cases;
}

}  // namespace gdn::bench
