// Quantised weights on a GPU: with every kernel, tile and format the bits of the same call over the float32 matrix of
// the weights' values; and how they come to the device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/product_math.h"
#ifdef GDN_TEST_FAILING_ACQUISITIONS
#include "kernels/gpu/acquisitions/acquisitions.h"
#endif
#include "kernels/projection/packed_weights_gpu.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"

namespace gdn::quantised_projection_gpu_test {
namespace {

constexpr absl::Span<const WeightFormat> kQuantised = absl::MakeConstSpan(kWeightFormats).subspan(3);
static_assert(IsPlain(kWeightFormats[2]) && !IsPlain(kQuantised[0]));

// A file's matrix of random bits, with factors that are numbers.
struct FileMatrix {
  FileMatrix(WeightFormat f, int64_t r, int64_t c, uint32_t seed) : format(f), rows(r), cols(c) {
    std::mt19937 engine(seed);
    bytes.resize(static_cast<size_t>(rows * RowBytes(format, cols)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(engine());
    std::uniform_real_distribution<float> factor(-0.01f, 0.01f);
    if (format == WeightFormat::kF8E4M3) {
      for (uint8_t& byte : bytes) byte = (byte & 0x7f) == 0x7f ? 0 : byte;
      scales.resize(static_cast<size_t>(Fp8Blocks(rows) * Fp8Blocks(cols)));
      for (float& scale : scales) scale = factor(engine);
      return;
    }
    const FactorOffsets at = FactorsAt(format);
    const auto store = [&](size_t block, int32_t offset) {
      const uint16_t bits = FloatToF16(factor(engine));
      if (offset >= 0) std::memcpy(&bytes[block + static_cast<size_t>(offset)], &bits, sizeof(bits));
    };
    for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(BlockOf(format).bytes)) {
      store(block, at.d);
      store(block, at.m);
    }
  }

  WeightMatrix matrix() const {
    return {.format = format,
            .data = bytes.data(),
            .rows = rows,
            .cols = cols,
            .scales = scales.empty() ? nullptr : scales.data()};
  }
  std::vector<float> Values() const {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (int64_t row = 0; row < rows; ++row) WeightRow(matrix(), row, values.data() + row * cols);
    return values;
  }

  WeightFormat format;
  int64_t rows, cols;
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
};

std::vector<float> RandomX(int64_t count) {
  std::mt19937 engine(11);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(engine);
  return x;
}

class QuantisedProjectionGpu : public GpuTest {
 protected:
  WeightMatrix OnDevice(const FileMatrix& file) {
    WeightMatrix matrix = file.matrix();
    const auto bytes = static_cast<size_t>(backend().WeightBytes(matrix));
    buffers_.push_back(*DeviceBuffer::Make(backend(), bytes));
    EXPECT_EQ(backend().CopyWeightsIn(buffers_.back().data(), matrix), absl::OkStatus());
    matrix.data = buffers_.back().data();
    if (!file.scales.empty()) matrix.scales = Upload(file.scales);
    return matrix;
  }
  WeightMatrix Widened(const FileMatrix& file) {
    return PlainMatrix(DType::kF32, Upload(file.Values()), file.rows, file.cols);
  }
  std::vector<float> Project(const WeightMatrix& weight, int64_t rows, InputTensor x, int64_t x_stride) {
    const int64_t y_stride = weight.rows + 3;
    float* y = Poisoned(rows * y_stride);
    const ProjectionParams params{.path = ProjectionPath::kSequenceGemm,
                                  .rows = rows,
                                  .x = x,
                                  .x_stride = x_stride,
                                  .weight = weight,
                                  .y = y,
                                  .y_stride = y_stride};
    EXPECT_EQ(backend().Projection(params), absl::OkStatus());
    return Download(y, rows * y_stride);
  }
  void ExpectSameBits(const FileMatrix& file, const std::vector<int64_t>& row_counts, int64_t gap = 0) {
    const WeightMatrix quantised = OnDevice(file);
    const WeightMatrix widened = Widened(file);
    for (const int64_t rows : row_counts) {
      const int64_t x_stride = file.cols + gap;
      const float* x = Upload(RandomX(rows * x_stride));
      EXPECT_TRUE(BitEqual(Project(quantised, rows, x, x_stride), Project(widened, rows, x, x_stride)))
          << WeightFormatName(file.format) << ", " << rows << " rows, [" << file.rows << ", " << file.cols << "]";
    }
  }

  std::vector<DeviceBuffer> buffers_;
};
GDN_ON_BACKENDS(QuantisedProjectionGpu, WithGpus({}));

TEST_P(QuantisedProjectionGpu, FewRowsHaveTheBitsOfTheWeightsInFloat32) {
  for (const WeightFormat format : kQuantised) {
    for (const int64_t outputs : {1, 16, 37, 150}) {
      ExpectSameBits(FileMatrix(format, outputs, /*cols=*/768, /*seed=*/1), {1, 2, 3, 5, 8});
    }
  }
}

// More groups of features than a block's teams have at a time.
TEST_P(QuantisedProjectionGpu, SoHaveRoundsOfFeatures) {
  for (const WeightFormat format : kQuantised) {
    ExpectSameBits(FileMatrix(format, /*rows=*/40, /*cols=*/2304, /*seed=*/2), {1, 2, 4, 7});
  }
}

TEST_P(QuantisedProjectionGpu, TilesHaveTheBitsOfTheWeightsInFloat32) {
  for (const WeightFormat format : kQuantised) {
    ExpectSameBits(FileMatrix(format, /*rows=*/150, /*cols=*/768, /*seed=*/3), {9, 33, 70});
    ExpectSameBits(FileMatrix(format, /*rows=*/13, /*cols=*/256, /*seed=*/4), {17, 130});
  }
}

TEST_P(QuantisedProjectionGpu, WidthsNeedNotBeMultiplesOfAGroup) {
  for (const WeightFormat format : kQuantised) {
    if (BlockOf(format).weights != 32) continue;
    for (const int64_t cols : {32, 96, 160, 1120}) {
      ExpectSameBits(FileMatrix(format, /*rows=*/21, cols, /*seed=*/5), {1, 2, 6, 12});
    }
  }
  for (const int64_t cols : {1, 7, 16, 40, 127, 130, 200, 333}) {
    ExpectSameBits(FileMatrix(WeightFormat::kF8E4M3, /*rows=*/133, cols, /*seed=*/6), {1, 2, 6, 12});
  }
}

TEST_P(QuantisedProjectionGpu, RowsOfXMayBeMisalignedAndOfSixteenBits) {
  for (const WeightFormat format : kQuantised) {
    const FileMatrix file(format, /*rows=*/37, /*cols=*/256, /*seed=*/7);
    ExpectSameBits(file, {1, 4, 11}, /*gap=*/1);
    const WeightMatrix quantised = OnDevice(file);
    const WeightMatrix widened = Widened(file);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t rows : {1, 6, 70}) {
        const std::vector<float> values = RandomX(rows * 256);
        std::vector<uint16_t> narrow(values.size());
        ConvertFromFloat(values.data(), values.size(), dtype, narrow.data());
        const InputTensor x{Upload(narrow), dtype};
        EXPECT_TRUE(BitEqual(Project(quantised, rows, x, 256), Project(widened, rows, x, 256)))
            << WeightFormatName(format) << ", " << rows << " rows of " << DTypeName(dtype);
      }
    }
  }
}

TEST_P(QuantisedProjectionGpu, MatricesOfSeveralFormatsMayShareACall) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kCols = 512;
  const float* x = Upload(RandomX(kRows * kCols));
  const WeightFormat formats[] = {WeightFormat::kQ4_K, WeightFormat::kQ4_K, WeightFormat::kIQ4_NL, WeightFormat::kF32};
  std::vector<ProjectionParams> params;
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < 4; ++i) {
    const FileMatrix file(formats[i], /*rows=*/20 + static_cast<int64_t>(i) * 17, kCols, static_cast<uint32_t>(i));
    params.push_back({.path = ProjectionPath::kSequenceGemm,
                      .rows = kRows,
                      .x = x,
                      .x_stride = kCols,
                      .weight = OnDevice(file),
                      .y = Poisoned(kRows * (file.rows + 3)),
                      .y_stride = file.rows + 3});
    expected.push_back(Project(Widened(file), kRows, x, kCols));
  }
  ASSERT_EQ(backend().Projections(params), absl::OkStatus());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(
        BitEqual(Download(static_cast<const float*>(params[i].y.data), kRows * params[i].y_stride), expected[i]))
        << WeightFormatName(formats[i]);
  }
}

// Devices of many sizes, which choose different tiles.
TEST_P(QuantisedProjectionGpu, EveryTileOfRoundedInputsHasTheBitsOfFewRows) {
  constexpr int64_t kRows = 130, kCols = 416 + 352;
  const std::vector<float> x = RandomX(kRows * kCols);
  const float* const on_device = Upload(x);
  for (const WeightFormat format : kQuantised) {
    if (!HasIntegerWeights(format)) continue;
    const FileMatrix file(format, /*rows=*/150, kCols, /*seed=*/12);
    ProjectionParams params{
        .math = ProductMath::kInt8, .rows = 8, .x_stride = kCols, .weight = OnDevice(file), .y_stride = file.rows};
    std::vector<float> expected;
    for (int64_t first = 0; first < kRows; first += params.rows) {
      params.rows = std::min<int64_t>(8, kRows - first);
      params.x = on_device + first * kCols;
      float* const y = Poisoned(params.rows * params.y_stride);
      params.y = y;
      ASSERT_EQ(backend().Projection(params), absl::OkStatus());
      const std::vector<float> some = Download(y, params.rows * params.y_stride);
      expected.insert(expected.end(), some.begin(), some.end());
    }
    params.rows = kRows;
    params.x = on_device;
    gpu::Stream device = stream();
    float* const workspace = Poisoned(GpuWorkspaceFloats(params, device));
    for (const int32_t processors : {1, 3, 20, 1000}) {
      device.processors = processors;
      float* const y = Poisoned(kRows * params.y_stride);
      params.y = y;
      ASSERT_EQ(ProjectionGpu(params, workspace, device), absl::OkStatus());
      EXPECT_TRUE(BitEqual(Download(y, kRows * params.y_stride), expected))
          << WeightFormatName(format) << ", " << processors << " processors";
    }
  }
}

TEST_P(QuantisedProjectionGpu, MatricesOfSeveralFormatsShareRoundedInputs) {
  constexpr int64_t kCols = 512;
  const WeightFormat formats[] = {WeightFormat::kQ6_K, WeightFormat::kF8E4M3, WeightFormat::kQ8_0, WeightFormat::kQ8_0};
  for (const int64_t rows : {3, 40}) {
    const float* x = Upload(RandomX(rows * kCols));
    std::vector<ProjectionParams> params;
    std::vector<std::vector<float>> expected;
    for (size_t i = 0; i < 4; ++i) {
      const FileMatrix file(formats[i], /*rows=*/20 + static_cast<int64_t>(i) * 17, kCols, static_cast<uint32_t>(i));
      params.push_back({.math = ProductMath::kInt8,
                        .rows = rows,
                        .x = x,
                        .x_stride = kCols,
                        .weight = OnDevice(file),
                        .y = Poisoned(rows * file.rows),
                        .y_stride = file.rows});
      ASSERT_EQ(backend().Projection(params.back()), absl::OkStatus());
      expected.push_back(Download(static_cast<const float*>(params.back().y.data), rows * file.rows));
      params.back().y = Poisoned(rows * file.rows);
    }
    ASSERT_EQ(backend().Projections(params), absl::OkStatus());
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(
          BitEqual(Download(static_cast<const float*>(params[i].y.data), rows * params[i].y_stride), expected[i]))
          << WeightFormatName(formats[i]) << ", " << rows << " rows";
    }
  }
}

// 64 MiB hold fewer rows than these.
TEST_P(QuantisedProjectionGpu, RoundedInputsTakeALimitedWorkspace) {
  constexpr int64_t kMost = int64_t{64} << 18;  // floats
  ProjectionParams params{.math = ProductMath::kInt8, .rows = 9, .weight = {.format = WeightFormat::kQ8_0, .rows = 1}};
  params.weight.cols = 2048;
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), 2048 / 32 * 11 * 12);
  params.rows = int64_t{1} << 31;
  EXPECT_LE(GpuWorkspaceFloats(params, stream()), kMost);
  EXPECT_GT(GpuWorkspaceFloats(params, stream()), kMost * 9 / 10);
  params.weight.cols = kMaxPackedFeatures;  // not even nine rows
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), 0);
  params.weight.cols = 2048;
  params.rows = 8;
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), 0);
  params.rows = 9;
  params.math = ProductMath::kExact;
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), 0);
}

// So many features that 20 rows fill the workspace: rows 20 to 29 are a run of their own.
TEST_P(QuantisedProjectionGpu, LongerCallsOfRoundedInputsRunInParts) {
  if (GpuBackendName() == "host") GTEST_SKIP() << "takes 20 s on the executor; it passed there";
  constexpr int64_t kCols = int64_t{1} << 21, kRows = 30;
  const FileMatrix file(WeightFormat::kQ8_0, /*rows=*/2, kCols, /*seed=*/17);
  const std::vector<float> random = RandomX(kCols + kRows);
  std::vector<float> rows;
  for (int64_t row = 0; row < kRows; ++row) rows.insert(rows.end(), random.begin() + row, random.begin() + row + kCols);
  ProjectionParams params{.math = ProductMath::kInt8,
                          .rows = kRows,
                          .x = Upload(rows),
                          .x_stride = kCols,
                          .weight = OnDevice(file),
                          .y_stride = 2};
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), kCols / 32 * 11 * 20);
  float* const y = Poisoned(kRows * 2);
  params.y = y;
  ASSERT_EQ(backend().Projection(params), absl::OkStatus());
  const std::vector<float> all = Download(y, kRows * 2);
  params.rows = 1;
  for (const int64_t row : {0, 19, 20, 29}) {
    ProjectionParams alone = params;
    alone.x = params.x.From(row * kCols);
    ASSERT_EQ(backend().Projection(alone), absl::OkStatus());
    EXPECT_TRUE(BitEqual(Download(y, 2), absl::MakeConstSpan(all).subspan(row * 2, 2))) << row;
  }
}

#ifdef GDN_TEST_FAILING_ACQUISITIONS
TEST_P(QuantisedProjectionGpu, APreparedCallAcquiresNothing) {
  const FileMatrix file(WeightFormat::kQ4_K, /*rows=*/40, /*cols=*/512, /*seed=*/13);
  const WeightMatrix weight = OnDevice(file);
  const float* x = Upload(RandomX(70 * 512));
  float* const y = Poisoned(70 * 40);
  const auto issue = [&](int64_t rows) {
    return backend().Projection(
        {.math = ProductMath::kInt8, .rows = rows, .x = x, .x_stride = 512, .weight = weight, .y = y, .y_stride = 40});
  };
  Acquisitions::ForgetCode();
  ASSERT_EQ(backend().Prepare([&] {
    const absl::Status few = issue(8);
    return few.ok() ? issue(70) : few;
  }),
            absl::OkStatus());
  EXPECT_TRUE(std::isnan(Download(y, 1)[0])) << "it was computed";
  Acquisitions::Fail({});
  for (const int64_t rows : {1, 5, 8, 9, 70}) EXPECT_EQ(issue(rows), absl::OkStatus()) << rows;
  EXPECT_EQ(backend().Synchronize(), absl::OkStatus());
  EXPECT_EQ(Acquisitions::Stop(), 0);
}
#endif

// A recording names the workspace, which a longer call replaces.
TEST(QuantisedProjectionInGraphs, ReplaysUseTheWorkspaceOfRoundedInputs) {
  constexpr int64_t kRows = 40, kCols = 256, kOutputs = 24;
  const auto backend = *MakeGpuBackend({.graphs = GpuGraphs::kOn});
  const auto make = [&](int64_t floats) {
    return *DeviceBuffer::Make(*backend, static_cast<size_t>(floats) * sizeof(float));
  };
  const FileMatrix file(WeightFormat::kQ5_K, kOutputs, kCols, /*seed=*/15);
  WeightMatrix weight = file.matrix();
  const DeviceBuffer packed = make(backend->WeightBytes(weight) / 4);
  ASSERT_EQ(backend->CopyWeightsIn(packed.data(), weight), absl::OkStatus());
  weight.data = packed.data();
  const DeviceBuffer x = make(10 * kRows * kCols), y = make(10 * kRows * kOutputs), staged = make(64);
  const HostBuffer host = *HostBuffer::Make(*backend, 256);
  const auto project = [&](int64_t rows) {
    return backend->Projection({.math = ProductMath::kInt8,
                                .rows = rows,
                                .x = x.floats(),
                                .x_stride = kCols,
                                .weight = weight,
                                .y = y.floats(),
                                .y_stride = kOutputs});
  };
  const auto results = [&] {
    std::vector<float> values(kRows * kOutputs);
    EXPECT_EQ(backend->CopyOut(values.data(), y.data(), values.size() * sizeof(float)), absl::OkStatus());
    return values;
  };
  const int32_t cu_seqlens[] = {0, 1}, slots[] = {0};
  const PackedBatch batch{.sequences = 1, .cu_seqlens = cu_seqlens, .slots = slots};
  const std::vector<float> random = RandomX(kRows * kCols + 16);
  for (int step = 0; step < 12; ++step) {
    if (step == 6) {
      ASSERT_EQ(project(10 * kRows), absl::OkStatus());
    }
    ASSERT_EQ(backend->CopyIn(x.data(), random.data() + step, kRows * kCols * sizeof(float)), absl::OkStatus());
    ASSERT_EQ(backend->UseThread(), absl::OkStatus());
    ASSERT_EQ(backend->StageIn({.device = staged.data(), .host = host.data(), .bytes = 64, .batch = batch}),
              absl::OkStatus());
    ASSERT_EQ(backend->IssueOrReplay({.key = "projection", .batch = batch}, [&] { return project(kRows); }),
              absl::OkStatus());
    const std::vector<float> issued = results();
    ASSERT_EQ(project(kRows), absl::OkStatus());
    EXPECT_TRUE(BitEqual(issued, results())) << step;
  }
  EXPECT_GE(GpuGraphCountsOf(*backend).replayed, 4);
}

TEST_P(QuantisedProjectionGpu, AnE4M3NaNReachesItsOutputAndNoOther) {
  FileMatrix file(WeightFormat::kF8E4M3, /*rows=*/20, /*cols=*/256, /*seed=*/8);
  file.bytes[5 * 256 + 131] = 0x7f;
  file.bytes[17 * 256 + 64] = 0xff;
  const WeightMatrix weight = OnDevice(file);
  for (const int64_t rows : {1, 12}) {
    const std::vector<float> y = Project(weight, rows, Upload(RandomX(rows * 256)), 256);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t output = 0; output < 20; ++output) {
        EXPECT_EQ(std::isnan(y[static_cast<size_t>(row * 23 + output)]), output == 5 || output == 17) << output;
      }
    }
  }
}

TEST_P(QuantisedProjectionGpu, WeightsThatKernelsCannotReadAreRefused) {
  const FileMatrix file(WeightFormat::kQ8_0, /*rows=*/4, /*cols=*/64, /*seed=*/9);
  ProjectionParams params{.rows = 1, .x = Upload(RandomX(64)), .x_stride = 64, .weight = OnDevice(file)};
  params.y = Poisoned(4);
  params.y_stride = 4;
  params.weight.data = static_cast<const char*>(params.weight.data) + 2;
  absl::Status status = backend().Projection(params);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ErrorReason(status), reason::kValueOutOfRange);

  const DeviceBuffer buffer = *DeviceBuffer::Make(backend(), 1024);
  WeightMatrix odd = file.matrix();
  odd.cols = 33;
  EXPECT_EQ(backend().CopyWeightsIn(buffer.data(), odd).code(), absl::StatusCode::kInvalidArgument);
  FileMatrix fp8(WeightFormat::kF8E4M3, /*rows=*/2, /*cols=*/130, /*seed=*/10);
  fp8.scales[1] = 0x1p120f;
  status = backend().CopyWeightsIn(buffer.data(), fp8.matrix());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  WeightMatrix wide = file.matrix();
  wide.cols = kMaxPackedFeatures + 32;
  EXPECT_EQ(PackWeights(wide, nullptr).code(), absl::StatusCode::kInvalidArgument);
  WeightMatrix unscaled = fp8.matrix();
  unscaled.scales = nullptr;
  EXPECT_EQ(backend().CopyWeightsIn(buffer.data(), unscaled).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PackedWeights, TakeTheFilesBytesAndWholeTiles) {
  const auto bytes = [](WeightFormat format, int64_t rows, int64_t cols, const float* scales = nullptr) {
    return PackedWeightBytes({.format = format, .rows = rows, .cols = cols, .scales = scales});
  };
  for (const WeightFormat format : kQuantised) {
    // IQ3_S's values have four bits on a GPU.
    const WeightFormat size = format == WeightFormat::kIQ3_S ? WeightFormat::kIQ4_XS : format;
    EXPECT_EQ(bytes(format, 48, 2048), 48 * RowBytes(size, 2048)) << WeightFormatName(format);
    EXPECT_EQ(bytes(format, 37, 2048), 48 * RowBytes(size, 2048)) << WeightFormatName(format);
  }
  EXPECT_EQ(bytes(WeightFormat::kQ5_1, 5, 96), 16 * (3 * 24 + 8));
  EXPECT_EQ(bytes(WeightFormat::kQ8_0, 5, 96), 16 * (3 * 34 + 2));
  EXPECT_EQ(bytes(WeightFormat::kF8E4M3, 5, 130), 16 * 144);
  EXPECT_EQ(bytes(WeightFormat::kBF16, 5, 130), 5 * 260);
  const float scale = 1.0f;
  EXPECT_EQ(bytes(WeightFormat::kF32, 5, 130), 5 * 520);
  EXPECT_EQ(bytes(WeightFormat::kF32, 5, 130, &scale), 5 * 260) << "as fp16 numbers";
}

TEST(PackedWeights, OfPlainMatricesWithScalesAreFp16NumbersTimesThese) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kF32}) {
    const FileMatrix file(format, /*rows=*/5, /*cols=*/33, /*seed=*/16);
    WeightMatrix matrix = file.matrix();
    const std::vector<float> scales = RowScalesOf(matrix, ProductMath::kHalf), values = file.Values();
    matrix.scales = scales.data();
    std::vector<uint16_t> packed(5 * 33 + 1, 0xa5a5);
    ASSERT_EQ(PackWeights(matrix, packed.data()), absl::OkStatus());
    EXPECT_EQ(packed.back(), 0xa5a5);
    for (size_t i = 0; i + 1 < packed.size(); ++i) {
      EXPECT_EQ(packed[i], FloatToF16(values[i] * scales[i / 33])) << WeightFormatName(format) << ", " << i;
    }
  }
}

// Nothing is written behind the end, where tiles are cut and blocks are odd in number.
TEST(PackedWeights, FillTheirBytesAndNoOthers) {
  for (const WeightFormat format : kQuantised) {
    const FileMatrix file(format, /*rows=*/19, format == WeightFormat::kF8E4M3 ? 130 : BlockOf(format).weights * 3, 1);
    const auto bytes = static_cast<size_t>(PackedWeightBytes(file.matrix()));
    std::vector<uint8_t> once(bytes + 64, 0xa5), again(bytes + 64, 0x5a);
    ASSERT_EQ(PackWeights(file.matrix(), once.data()), absl::OkStatus());
    ASSERT_EQ(PackWeights(file.matrix(), again.data()), absl::OkStatus());
    EXPECT_TRUE(std::equal(once.begin(), once.begin() + static_cast<int64_t>(bytes), again.begin()))
        << WeightFormatName(format);
    EXPECT_EQ(std::vector<uint8_t>(once.begin() + static_cast<int64_t>(bytes), once.end()),
              std::vector<uint8_t>(64, 0xa5))
        << WeightFormatName(format);
  }
}

}  // namespace
}  // namespace gdn::quantised_projection_gpu_test
