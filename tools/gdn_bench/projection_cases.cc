// The layer's largest projection, [C, D]: few rows through the row-stable path, one prefill segment through the library
// GEMM.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/layer/gdn_layer.h"
#include "tools/gdn_bench/kernel_case.h"

namespace gdn::bench {
namespace {

constexpr int64_t kCpuDecodeRows[] = {1, 8, 32};
constexpr int64_t kGpuDecodeRows[] = {1, 8, 32, 128};
constexpr int64_t kCpuGemmRows[] = {512};
constexpr int64_t kGpuGemmRows[] = {512, 2048};

struct ProjectionFixture {
  std::shared_ptr<DeviceBuffer> weights;  // [copies, C, D]
  std::shared_ptr<DeviceBuffer> x;        // [rows, D]
  std::shared_ptr<DeviceBuffer> y;        // [rows, C]
};

absl::StatusOr<PreparedCase> PrepareProjection(const CaseSetting& setting, ProjectionPath path, DType dtype,
                                               int64_t rows) {
  Backend& backend = setting.backend;
  const LayerDims dims = BenchLayerDims();
  const int64_t out = dims.conv_channels();
  const int64_t in = dims.hidden_size;
  const int64_t matrix_bytes = out * in * static_cast<int64_t>(DTypeSize(dtype));
  // A model's layers have weights of their own, so a layer finds none of its own in the cache. A GEMM of many rows
  // reuses each weight enough not to care.
  const int64_t copies =
      path == ProjectionPath::kRowStable ? (setting.rotation_bytes + matrix_bytes - 1) / matrix_bytes : 1;
  auto fixture = std::make_shared<ProjectionFixture>();
  const float range = std::sqrt(3.0f / static_cast<float>(in));
  GDN_ASSIGN_OR_RETURN(fixture->weights, RandomBuffer(backend, copies * out * in, -range, range, dtype));
  GDN_ASSIGN_OR_RETURN(fixture->x, RandomBuffer(backend, rows * in, -1.0f, 1.0f));
  GDN_ASSIGN_OR_RETURN(fixture->y, RandomBuffer(backend, rows * out, 0.0f, 1.0f));
  const Cost cost = ProjectionCost(rows, out, in, dtype);
  return PreparedCase{.cost = cost,
                      .steps = copies,
                      .working_set_bytes = static_cast<double>(copies * matrix_bytes),
                      .run = [=, &backend]() -> absl::Status {
                        for (int64_t copy = 0; copy < copies; ++copy) {
                          const char* data = static_cast<const char*>(fixture->weights->data()) + copy * matrix_bytes;
                          GDN_RETURN_IF_ERROR(backend.Projection({.path = path,
                                                                  .rows = rows,
                                                                  .x = fixture->x->floats(),
                                                                  .x_stride = in,
                                                                  .weight = PlainMatrix(dtype, data, out, in),
                                                                  .y = fixture->y->floats(),
                                                                  .y_stride = out}));
                        }
                        return absl::OkStatus();
                      }};
}

}  // namespace

std::vector<KernelCase> ProjectionCases(CaseList list) {
  const auto decode_rows =
      list == CaseList::kGpu ? absl::MakeConstSpan(kGpuDecodeRows) : absl::MakeConstSpan(kCpuDecodeRows);
  const auto gemm_rows = list == CaseList::kGpu ? absl::MakeConstSpan(kGpuGemmRows) : absl::MakeConstSpan(kCpuGemmRows);
  std::vector<KernelCase> cases;
  const auto add = [&cases](const char* name, ProjectionPath path, DType dtype, int64_t rows) {
    cases.push_back({absl::StrCat(name, "/", std::string(DTypeName(dtype)), "/rows=", rows),
                     [=](const CaseSetting& setting) { return PrepareProjection(setting, path, dtype, rows); }});
  };
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t rows : decode_rows) add("projection_row_stable", ProjectionPath::kRowStable, dtype, rows);
    for (const int64_t rows : gemm_rows) add("projection_sequence_gemm", ProjectionPath::kSequenceGemm, dtype, rows);
  }
  return cases;
}

}  // namespace gdn::bench
