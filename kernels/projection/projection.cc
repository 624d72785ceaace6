#include "kernels/projection/projection.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

absl::Status ValidateWeight(const WeightMatrix& weight) {
  constexpr char kOp[] = "Projection";
  const std::string_view name = WeightFormatName(weight.format);
  const int64_t block = BlockOf(weight.format).weights;
  if (weight.cols % block != 0) {
    return InvalidField(kOp, "weight.cols", "weight.cols is ", weight.cols, "; expected a multiple of ", block,
                        ", the block of ", name);
  }
  const auto aligned = [](const void* data, int64_t alignment) {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0;
  };
  const int64_t alignment = AlignmentOf(weight.format);
  if (!aligned(weight.data, alignment)) {
    return InvalidField(kOp, "weight.data", "weight.data is no multiple of ", alignment, ", as ", name, " needs it");
  }
  if (weight.format != WeightFormat::kF8E4M3) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointer(kOp, "weight.scales", weight.scales));
  return aligned(weight.scales, alignof(float))
             ? absl::OkStatus()
             : InvalidField(kOp, "weight.scales", "weight.scales is no multiple of 4");
}

// Appends a row of x as int8 products see it.
void AppendRounded(const std::vector<float>& row, std::vector<double>& x) {
  for (size_t block = 0; block < row.size(); block += kInt8Block) {
    int8_t q[kInt8Block];
    const double scale = RoundToInt8(row.data() + block, q);
    for (const int8_t one : q) x.push_back(scale * one);
  }
}

// Appends a row of x as products of fp16 numbers see it.
void AppendHalves(const std::vector<float>& row, std::vector<double>& x) {
  for (size_t group = 0; group < row.size(); group += kHalfGroup) {
    const size_t end = std::min(row.size(), group + kHalfGroup);
    const HalfScale scale = HalfScaleOf(row.data() + group, static_cast<int64_t>(end - group));
    for (size_t i = group; i < end; ++i) x.push_back(RoundToHalf(row[i], scale));
  }
}

}  // namespace

std::vector<float> RowScalesOf(const WeightMatrix& weight, ProductMath math) {
  std::vector<float> scales(static_cast<size_t>(weight.rows)), row(static_cast<size_t>(weight.cols));
  for (int64_t i = 0; i < weight.rows; ++i) {
    WeightRow(weight, i, row.data());
    if (math != ProductMath::kHalf && !AreScaledHalves(row.data(), weight.cols)) return {};
    scales[static_cast<size_t>(i)] = HalfScaleOf(row.data(), weight.cols).scale;
  }
  return scales;
}

absl::Status ValidateProjection(const ProjectionParams& params) {
  constexpr char kOp[] = "Projection";
  constexpr int64_t kMaxFeatures = int64_t{1} << 31;
  const WeightMatrix& weight = params.weight;
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "weight.rows", weight.rows, 0, kMaxFeatures));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "weight.cols", weight.cols, 1, kMaxFeatures));
  if (params.rows == 0 || weight.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointers(kOp, {{"x", params.x.data}, {"weight.data", weight.data}, {"y", params.y.data}}));
  GDN_RETURN_IF_ERROR(ValidateWeight(weight));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kOp, "x_stride", params.x_stride, weight.cols));
  return RequireAtLeast(kOp, "y_stride", params.y_stride, weight.rows);
}

void WeightRow(const WeightMatrix& weight, int64_t row, float* out) {
  const char* data = static_cast<const char*>(weight.data) + row * RowBytes(weight.format, weight.cols);
  const bool scaled = weight.format == WeightFormat::kF8E4M3;
  DequantizeRow(weight.format, data, scaled ? weight.scales + row / kFp8Block * Fp8Blocks(weight.cols) : nullptr,
                weight.cols, out);
}

void ProjectionReference(const ProjectionParams& params) {
  const WeightMatrix& weight = params.weight;
  if (weight.rows == 0) return;
  const bool rounds_to_halves = params.math == ProductMath::kHalf && TakesHalves(params);
  const auto cols = static_cast<size_t>(weight.cols);
  std::vector<float> w(cols), row_of_x(cols);
  std::vector<double> x;
  for (int64_t row = 0; row < params.rows; ++row) {
    ConvertToFloat(params.x.dtype, params.x.From(row * params.x_stride).data, cols, row_of_x.data());
    if (TakesInt8Inputs(params.math, weight.format)) {
      AppendRounded(row_of_x, x);
    } else if (rounds_to_halves) {
      AppendHalves(row_of_x, x);
    } else {
      x.insert(x.end(), row_of_x.begin(), row_of_x.end());
    }
  }
  for (int64_t output = 0; output < weight.rows; ++output) {
    WeightRow(weight, output, w.data());
    if (rounds_to_halves && IsPlain(weight.format)) {
      const float scale = weight.scales[output];
      for (float& value : w) value = RoundToHalf(value, {scale, 1.0f / scale});
    }
    for (int64_t row = 0; row < params.rows; ++row) {
      double sum = 0.0;
      for (int64_t i = 0; i < weight.cols; ++i) {
        sum += x[static_cast<size_t>(row * weight.cols + i)] * double{w[static_cast<size_t>(i)]};
      }
      const float rounded = static_cast<float>(sum);
      ConvertFromFloat(&rounded, 1, params.y.dtype, params.y.From(row * params.y_stride + output).data);
    }
  }
}

}  // namespace gdn
