// Projections on matrix units: float32's accuracy, and one order of sums for any rows, tiles, dtypes and alignments.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/projection/projection.h"
#include "kernels/projection/random_weights.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn::matrix_unit_projection_test {
namespace {

constexpr double kTolerance = 1e-6;
constexpr DType kDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr int32_t kProcessors[] = {1, 1000};  // tiles are large for 1, small for 1,000

// A tensor on the host, as `dtype`.
struct Stored {
  Stored(DType its_dtype, const std::vector<float>& values, size_t shift = 0)
      : dtype(its_dtype), bytes((values.size() + shift) * DTypeSize(dtype)) {
    ConvertFromFloat(values.data(), values.size(), dtype, bytes.data() + shift * DTypeSize(dtype));
  }
  std::vector<float> Values() const {
    std::vector<float> values(bytes.size() / DTypeSize(dtype));
    ConvertToFloat(dtype, bytes.data(), values.size(), values.data());
    return values;
  }

  DType dtype;
  std::vector<char> bytes;
};

class MatrixUnitProjection : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    device_ = stream();
    if (device_.wave_width != 32) GTEST_SKIP() << "no matrix units";
    if (GpuBackendName() == "host") device_.matrix_units = true;
    if (!device_.matrix_units) GTEST_SKIP() << "no matrix units";
    device_.processors = 1000;
  }

  // x and weights are on the device.
  std::vector<float> Project(int64_t rows, InputTensor x, int64_t x_stride, const WeightMatrix& weight) {
    ProjectionParams params{.path = path_,
                            .rows = rows,
                            .x = x,
                            .x_stride = x_stride,
                            .x_terms = x_terms_,
                            .weight = weight,
                            .y_stride = weight.rows + 3};
    float* const y = Poisoned(rows * params.y_stride);
    params.y = y;
    EXPECT_EQ(ProjectionGpu(params, Workspace(params), device_), absl::OkStatus());
    EXPECT_EQ(backend().Synchronize(), absl::OkStatus());
    const std::vector<float> with_gaps = Download(y, rows * params.y_stride);
    std::vector<float> dense;
    for (auto row = with_gaps.begin(); row != with_gaps.end(); row += params.y_stride) {
      dense.insert(dense.end(), row, row + weight.rows);
    }
    return dense;
  }
  float* Workspace(const ProjectionParams& params) {
    const int64_t floats = GpuWorkspaceFloats(params, device_);
    return floats == 0 ? nullptr : Poisoned(floats);
  }
  std::vector<float> Project(int64_t rows, int64_t features, const Stored& x, const Stored& w, size_t w_shift = 0) {
    const int64_t outputs = static_cast<int64_t>(w.bytes.size() / DTypeSize(w.dtype) - w_shift) / features;
    return Project(rows, {Upload(x.bytes), x.dtype}, features,
                   PlainMatrix(w.dtype, Upload(w.bytes) + w_shift * DTypeSize(w.dtype), outputs, features));
  }

  gpu::Stream device_;
  ProjectionPath path_ = ProjectionPath::kSequenceGemm;
  const uint16_t* x_terms_ = nullptr;
};
GDN_ON_BACKENDS(MatrixUnitProjection, WithGpus({}));

std::vector<float> Reference(int64_t rows, int64_t features, const Stored& x, const WeightMatrix& weight) {
  std::vector<float> y(static_cast<size_t>(rows * weight.rows));
  ProjectionReference({.rows = rows,
                       .x = {x.bytes.data(), x.dtype},
                       .x_stride = features,
                       .weight = weight,
                       .y = y.data(),
                       .y_stride = weight.rows});
  return y;
}
std::vector<float> Reference(int64_t rows, int64_t features, const Stored& x, const Stored& w) {
  const int64_t outputs = static_cast<int64_t>(w.bytes.size() / DTypeSize(w.dtype)) / features;
  return Reference(rows, features, x, PlainMatrix(w.dtype, w.bytes.data(), outputs, features));
}

TEST_P(MatrixUnitProjection, IsAsAccurateAsFloat32) {
  Random random(3);
  constexpr int64_t kRows = 33, kOutputs = 60, kFeatures = 584;
  const std::vector<float> x = random.Normal(kRows * kFeatures);
  const std::vector<float> w = random.Normal(kOutputs * kFeatures);
  for (const DType x_dtype : kDtypes) {
    for (const DType w_dtype : kDtypes) {
      const Stored of_x(x_dtype, x);
      const Stored of_w(w_dtype, w);
      const std::vector<float> y = Project(kRows, kFeatures, of_x, of_w);
      EXPECT_LE(RelativeNormError(y, Reference(kRows, kFeatures, of_x, of_w)), kTolerance)
          << DTypeName(x_dtype) << ", " << DTypeName(w_dtype);
    }
  }
}

// Sums of products that all have one sign: truncations of the unit's accumulator would add up.
TEST_P(MatrixUnitProjection, DoesNotDriftInLongSums) {
  Random random(4);
  constexpr int64_t kFeatures = 4096;
  std::vector<float> x = random.Normal(8 * kFeatures);
  std::vector<float> w = random.Normal(8 * kFeatures);
  for (float& value : x) value = std::fabs(value);
  for (float& value : w) value = std::fabs(value);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Stored of_x(dtype, x);
    const Stored of_w(DType::kBF16, w);
    EXPECT_LE(RelativeNormError(Project(8, kFeatures, of_x, of_w), Reference(8, kFeatures, of_x, of_w)), kTolerance)
        << DTypeName(dtype);
  }
}

// A path has one order, which three parts tell apart. So have both if the features are one part.
TEST_P(MatrixUnitProjection, ARowHasTheSameBitsInAnyTileAmongAnyRows) {
  Random random(5);
  const bool on_host = GpuBackendName() == "host";
  for (const int64_t features : {136, on_host ? 2120 : 4104}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const int64_t kRows = 140;
      const Stored x(dtype, random.Normal(kRows * features));
      const Stored w(DType::kBF16, random.Normal(90 * features));
      std::vector<float> expected;
      for (const ProjectionPath path : {ProjectionPath::kSequenceGemm, ProjectionPath::kRowStable}) {
        path_ = path;
        if (features > 1024) expected.clear();
        for (const int32_t processors : kProcessors) {  // blocks have parts of their own if there are 1,000
          device_.processors = processors;
          for (const int64_t rows : {140, 1, 8, 9, 16, 17, 32, 33, 64, 129}) {
            if (on_host && features > 1024 && rows % 8 == 0) continue;  // takes long
            const std::vector<float> y = Project(rows, features, x, w);
            if (expected.empty()) expected = y;
            EXPECT_TRUE(BitEqual(y, absl::MakeConstSpan(expected).first(y.size())))
                << DTypeName(dtype) << ", " << rows << " rows of " << features << " features, " << processors
                << " processors, " << (path == ProjectionPath::kRowStable ? "decode" : "prefill");
          }
          const std::vector<uint32_t> counters = Download(device_.counters, gpu::kStreamCounters);
          EXPECT_TRUE(std::ranges::all_of(counters, [](uint32_t word) { return word == 0; }));
        }
      }
    }
  }
}

// Heads of 24 elements are normed in registers, those of 6 in two passes.
TEST_P(MatrixUnitProjection, TermsThatTheNormWritesHaveTheBitsOfItsOutputs) {
  Random random(13);
  for (const int32_t value_dim : {24, 6}) {
    for (const int64_t tokens : {1, 9, 33}) {
      const int64_t features = 4 * value_dim, count = tokens * features;
      const float* const x = Upload(random.Normal(count));
      const float* const z = Upload(random.Normal(count));
      const float* const weight = Upload(random.Normal(value_dim));
      GatedRmsNormParams norm{.value_dim = value_dim,
                              .rows = tokens * 4,
                              .x = x,
                              .z = z,
                              .weight = weight,
                              .y = Poisoned(count),
                              .key_heads = 2,
                              .group = 2};
      const WeightMatrix w =
          PlainMatrix(DType::kBF16, Upload(Stored(DType::kBF16, random.Normal(20 * features)).bytes), 20, features);
      for (const ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
        path_ = path;
        norm.terms = nullptr;
        EXPECT_EQ(GatedRmsNormGpu(norm, device_), absl::OkStatus());
        const std::vector<float> expected = Project(tokens, {norm.y, DType::kF32}, features, w);
        norm.terms = reinterpret_cast<uint16_t*>(Poisoned(count * 2));
        EXPECT_EQ(GatedRmsNormGpu(norm, device_), absl::OkStatus());
        x_terms_ = norm.terms;
        EXPECT_TRUE(BitEqual(Project(tokens, {Poisoned(count), DType::kF32}, features, w), expected))
            << value_dim << ", " << tokens << " tokens";
        x_terms_ = nullptr;
      }
    }
  }
}

TEST_P(MatrixUnitProjection, RefusesTermsThatItDoesNotTake) {
  const Stored x(DType::kF32, std::vector<float>(32));
  const Stored w(DType::kBF16, std::vector<float>(64));
  ProjectionParams params{.path = ProjectionPath::kRowStable,
                          .rows = 1,
                          .x = {Upload(x.bytes), DType::kF32},
                          .x_stride = 32,
                          .weight = PlainMatrix(DType::kBF16, Upload(w.bytes), 2, 32),
                          .y = Poisoned(2),
                          .y_stride = 2};
  params.x_terms = reinterpret_cast<const uint16_t*>(Poisoned(64));
  EXPECT_TRUE(TakesTermsGpu(params, device_));
  const auto refuses = [&](ProjectionParams wrong, const gpu::Stream& on) {
    EXPECT_FALSE(TakesTermsGpu(wrong, on));
    EXPECT_EQ(ProjectionGpu(wrong, Poisoned(1024), on).code(), absl::StatusCode::kInvalidArgument);
  };
  ProjectionParams wrong = params;
  wrong.x_stride = 40;
  refuses(wrong, device_);
  wrong = params;
  wrong.x.dtype = DType::kBF16;
  refuses(wrong, device_);
  wrong = params;
  wrong.weight.format = WeightFormat::kF16;
  refuses(wrong, device_);
  wrong = params;
  ++wrong.x_terms;
  EXPECT_EQ(ProjectionGpu(wrong, nullptr, device_).code(), absl::StatusCode::kInvalidArgument);
  gpu::Stream without = device_;
  without.matrix_units = false;
  refuses(params, without);
}

TEST_P(MatrixUnitProjection, NarrowOperandsHaveTheBitsOfTheirValuesInFloat32) {
  Random random(6);
  constexpr int64_t kRows = 9, kFeatures = 104;
  const std::vector<float> x = random.Normal(kRows * kFeatures);
  const std::vector<float> w = random.Normal(20 * kFeatures);
  for (const DType x_dtype : kDtypes) {
    for (const DType w_dtype : kDtypes) {
      const Stored of_x(x_dtype, x);
      const Stored of_w(w_dtype, w);
      EXPECT_TRUE(
          BitEqual(Project(kRows, kFeatures, of_x, of_w),
                   Project(kRows, kFeatures, Stored(DType::kF32, of_x.Values()), Stored(DType::kF32, of_w.Values()))))
          << DTypeName(x_dtype) << ", " << DTypeName(w_dtype);
    }
  }
}

TEST_P(MatrixUnitProjection, QuantisedWeightsHaveTheBitsOfTheirValuesInFloat32) {
  constexpr int64_t kRows = 5, kFeatures = 256;
  const Stored x(DType::kF32, Random(7).Normal(kRows * kFeatures));
  for (const WeightFormat format : kWeightFormats) {
    if (IsPlain(format)) continue;
    const RandomWeights weights = MakeRandomWeights(format, /*rows=*/20, kFeatures, /*seed=*/8);
    const auto bytes = static_cast<size_t>(backend().WeightBytes(weights.matrix()));
    const DeviceBuffer packed = *DeviceBuffer::Make(backend(), bytes);
    ASSERT_EQ(backend().CopyWeightsIn(packed.data(), weights.matrix()), absl::OkStatus());
    WeightMatrix matrix = weights.matrix();
    matrix.data = packed.data();
    if (!weights.scales.empty()) matrix.scales = Upload(weights.scales);
    std::vector<float> values(static_cast<size_t>(weights.rows * kFeatures));
    for (int64_t row = 0; row < weights.rows; ++row) {
      WeightRow(weights.matrix(), row, values.data() + row * kFeatures);
    }
    const InputTensor on_device{Upload(x.bytes), DType::kF32};
    EXPECT_TRUE(BitEqual(Project(kRows, on_device, kFeatures, matrix),
                         Project(kRows, kFeatures, x, Stored(DType::kF32, values))))
        << WeightFormatName(format);
  }
}

// Projections on matrix units have a workspace for terms; those of a few rows elsewhere have none.
TEST(MatrixUnits, ProductsOfFp16NumbersAreMadeElsewhere) {
  const gpu::Stream stream{.wave_width = 32, .processors = 100, .matrix_units = true};
  const float scale = 1.0f;
  for (const ProductMath math : {ProductMath::kExact, ProductMath::kHalf}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_K, WeightFormat::kF32}) {
        ProjectionParams params{.path = ProjectionPath::kSequenceGemm,
                                .math = math,
                                .rows = 4,
                                .x = {nullptr, dtype},
                                .x_stride = 256,
                                .weight = {.format = format, .rows = 20, .cols = 256}};
        EXPECT_GT(GpuWorkspaceFloats(params, stream), 0) << WeightFormatName(format);
        if (IsPlain(format)) {
          params.weight.scales = &scale;
        } else {
          params.weight.integer_halves = true;
        }
        const bool halves = TakesHalves(params);
        EXPECT_EQ(halves, math == ProductMath::kHalf || dtype != DType::kF32);
        EXPECT_EQ(GpuWorkspaceFloats(params, stream) == 0, halves || IsPlain(format)) << WeightFormatName(format);
      }
    }
  }
}

TEST_P(MatrixUnitProjection, BitsDependOnNeitherAlignmentNorGaps) {
  Random random(9);
  constexpr int64_t kRows = 6, kFeatures = 96;
  const std::vector<float> w = random.Normal(20 * kFeatures);
  const Stored x(DType::kBF16, random.Normal(kRows * kFeatures));
  const std::vector<float> expected = Project(kRows, kFeatures, x, Stored(DType::kBF16, w));
  EXPECT_TRUE(BitEqual(Project(kRows, kFeatures, x, Stored(DType::kBF16, w, /*shift=*/1), 1), expected));
  std::vector<char> apart(static_cast<size_t>(kRows * (kFeatures + 1) * 2), '\xff');
  for (int64_t row = 0; row < kRows; ++row) {
    std::memcpy(&apart[static_cast<size_t>(row * (kFeatures + 1) * 2)],
                &x.bytes[static_cast<size_t>(row * kFeatures * 2)], kFeatures * 2);
  }
  EXPECT_TRUE(BitEqual(Project(kRows, {Upload(apart), DType::kBF16}, kFeatures + 1,
                               PlainMatrix(DType::kBF16, Upload(Stored(DType::kBF16, w).bytes), 20, kFeatures)),
                       expected));
}

// There is one feature, and one of x and W is 1. So y is the other.
TEST_P(MatrixUnitProjection, TermsAddUpToEveryValue) {
  std::vector<float> values = Random(10).Normal(100);
  for (const float value : {0.0f, 1.0f, -1.0f, 0x1.fep127f, -0x1.fffffep127f, 0x1.fffffep-110f, 0x1.000002p-110f,
                            0x1p-126f, 0x1p-133f, 16777215.0f, 1.0f + 0x1p-23f, 1.0f - 0x1p-24f}) {
    values.push_back(value);
  }
  const auto rows = static_cast<int64_t>(values.size());
  const Stored one(DType::kF32, {1.0f});
  const Stored all(DType::kF32, values);
  EXPECT_EQ(Project(1, 1, one, all), values);
  EXPECT_EQ(Project(rows, 1, all, one), values);
  EXPECT_EQ(Project(rows, 1, all, Stored(DType::kBF16, {1.0f})), values);
  // Below 2^-110 the last term has too few bits.
  const float tiny = 0x1.fffffep-120f;
  EXPECT_NEAR(Project(1, 1, Stored(DType::kF32, {tiny}), one)[0], tiny, 0x1p-134);
}

TEST_P(MatrixUnitProjection, InfinityAndNaNStayWhatTheyAreAndInTheirRows) {
  Random random(11);
  constexpr int64_t kFeatures = 100;
  std::vector<float> x = random.Normal(4 * kFeatures);
  std::vector<float> w = random.Normal(8 * kFeatures);
  for (const DType x_dtype : kDtypes) {
    const std::vector<float> clean = Project(4, kFeatures, Stored(x_dtype, x), Stored(DType::kBF16, w));
    std::vector<float> spoilt = x;
    spoilt[1 * kFeatures + 3] = INFINITY;
    spoilt[2 * kFeatures + 70] = NAN;
    const std::vector<float> y = Project(4, kFeatures, Stored(x_dtype, spoilt), Stored(DType::kBF16, w));
    for (int64_t output = 0; output < 8; ++output) {
      EXPECT_EQ(y[output], clean[output]);
      EXPECT_EQ(y[8 + output], std::copysign(INFINITY, w[output * kFeatures + 3])) << DTypeName(x_dtype);
      EXPECT_TRUE(std::isnan(y[16 + output]));
      EXPECT_EQ(y[24 + output], clean[24 + output]);
    }
  }
  w[5 * kFeatures + 7] = -INFINITY;
  for (const DType w_dtype : kDtypes) {
    const std::vector<float> y = Project(4, kFeatures, Stored(DType::kF32, x), Stored(w_dtype, w));
    for (int64_t row = 0; row < 4; ++row) {
      EXPECT_TRUE(std::isfinite(y[row * 8 + 4]));
      EXPECT_FALSE(std::isfinite(y[row * 8 + 5])) << DTypeName(w_dtype);
    }
  }
}

// Neither x's terms nor W's fit the workspace at once.
TEST_P(MatrixUnitProjection, LongCallsRunInParts) {
  constexpr int64_t kMost = int64_t{64} << 18;  // floats
  ProjectionParams params{.path = ProjectionPath::kSequenceGemm,
                          .rows = 1 << 20,
                          .weight = {.format = WeightFormat::kF32, .rows = 1 << 20, .cols = 2048}};
  EXPECT_LE(GpuWorkspaceFloats(params, device_), kMost);
  EXPECT_GT(GpuWorkspaceFloats(params, device_), kMost * 9 / 10);
  params.path = ProjectionPath::kRowStable;
  EXPECT_EQ(GpuWorkspaceFloats(params, device_), 0);
  if (GpuBackendName() == "host") return;

  constexpr int64_t kFeatures = 1 << 16, kRows = 100, kOutputs = 200;
  Random random(12);
  const Stored x(DType::kF32, random.Normal(kRows * kFeatures));
  const Stored w(DType::kF32, random.Normal(kOutputs * kFeatures));
  EXPECT_LE(RelativeNormError(Project(kRows, kFeatures, x, w), Reference(kRows, kFeatures, x, w)), kTolerance);
}

}  // namespace
}  // namespace gdn::matrix_unit_projection_test
