// Projections whose blocks share tiles: with any number of processors the bits of the same call with whole tiles.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"

namespace gdn::shared_tiles_test {
namespace {

class SharedTiles : public GpuTest {
 protected:
  static std::vector<float> Random(int64_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(engine);
    return values;
  }
  static std::vector<uint16_t> Narrow(const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (const float value : values) bits.push_back(FloatToBF16(value));
    return bits;
  }
  // Three matrices, one of them empty, of BF16 (or F32) weights on rows of BF16 (or F32).
  std::vector<ProjectionParams> Calls(int64_t rows, int64_t features, bool narrow_weights, bool narrow_x) {
    const std::vector<float> x = Random(rows * features, 1);
    std::vector<ProjectionParams> calls;
    for (const int64_t outputs : {150, 0, 40}) {
      ProjectionParams& call = calls.emplace_back();
      call.rows = rows;
      call.x_stride = features;
      call.y_stride = outputs;
      call.weight = {.rows = outputs, .cols = features};
      if (outputs == 0) continue;
      const std::vector<float> weights = Random(outputs * features, static_cast<uint32_t>(outputs));
      call.weight.format = narrow_weights ? WeightFormat::kBF16 : WeightFormat::kF32;
      call.weight.data = narrow_weights ? static_cast<const void*>(Upload(Narrow(weights))) : Upload(weights);
    }
    const void* const on_device = narrow_x ? static_cast<const void*>(Upload(Narrow(x))) : Upload(x);
    for (ProjectionParams& call : calls) {
      call.weight.format = calls[0].weight.format;
      call.x = {on_device, narrow_x ? DType::kBF16 : DType::kF32};
    }
    return calls;
  }
  std::vector<float> ResultsOf(std::vector<ProjectionParams> calls, const gpu::Stream& device, float* workspace) {
    std::vector<float> all;
    for (ProjectionParams& call : calls) {
      if (call.weight.rows > 0) call.y = Poisoned(call.rows * call.y_stride);
    }
    EXPECT_EQ(ProjectionsGpu(calls, workspace, device), absl::OkStatus());
    for (const ProjectionParams& call : calls) {
      if (call.weight.rows == 0) continue;
      const std::vector<float> y = Download(static_cast<const float*>(call.y.data), call.rows * call.y_stride);
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }
};
GDN_ON_BACKENDS(SharedTiles, WithGpus({}));

TEST_P(SharedTiles, HaveTheBitsOfWholeOnes) {
  int shared = 0;
  for (const int64_t features : {1096, 4096}) {  // of three rounds, the last of which not all waves have, and of eight
    for (const int64_t rows : {9, 70}) {
      for (const bool narrow : {false, true}) {
        const std::vector<ProjectionParams> calls = Calls(rows, features, /*narrow_weights=*/true, narrow);
        gpu::Stream device = stream();
        ASSERT_NE(device.counters, nullptr);
        device.matrix_units = false;
        const int64_t floats = GpuWorkspaceFloats(calls, device);
        ASSERT_GT(floats, 0);
        gpu::Stream whole = device;
        whole.counters = nullptr;
        EXPECT_EQ(GpuWorkspaceFloats(calls, whole), 0);
        const std::vector<float> expected = ResultsOf(calls, whole, nullptr);
        for (const int32_t processors : {5, 20, 32, 132}) {
          device.processors = processors;
          float* const workspace = Poisoned(floats);
          const std::vector<float> before = Download(workspace, floats);
          for (int again = 0; again < 2; ++again) {
            EXPECT_TRUE(BitEqual(ResultsOf(calls, device, workspace), expected))
                << rows << " rows, " << features << " features, " << processors << " processors";
          }
          shared += !BitEqual(Download(workspace, floats), before);
          const std::vector<uint32_t> counters = Download(device.counters, gpu::kStreamCounters);
          EXPECT_TRUE(std::ranges::all_of(counters, [](uint32_t word) { return word == 0; }));
        }
      }
    }
  }
  EXPECT_GE(shared, 2);  // others have too many tiles, or too few to be worth it
}

TEST_P(SharedTiles, AreOfAnyPlainWeights) {
  for (const bool narrow_x : {false, true}) {
    const std::vector<ProjectionParams> calls =
        Calls(/*rows=*/70, /*features=*/4096, /*narrow_weights=*/false, narrow_x);
    gpu::Stream device = stream();
    device.matrix_units = false;
    device.processors = 32;
    const int64_t floats = GpuWorkspaceFloats(calls, device);
    float* const workspace = Poisoned(floats);
    const std::vector<float> before = Download(workspace, floats);
    const std::vector<float> shared = ResultsOf(calls, device, workspace);
    EXPECT_FALSE(BitEqual(Download(workspace, floats), before));
    device.counters = nullptr;
    EXPECT_TRUE(BitEqual(shared, ResultsOf(calls, device, nullptr)));
  }
}

// A run of matrices of one format, all of them empty, has no tiles.
TEST_P(SharedTiles, AreNoneOfMatricesWithoutOutputs) {
  std::vector<ProjectionParams> calls = Calls(/*rows=*/9, /*features=*/64, /*narrow_weights=*/false, false);
  const std::vector<float> expected = ResultsOf(calls, stream(), Poisoned(GpuWorkspaceFloats(calls, stream())));
  ProjectionParams empty = calls[1];
  empty.weight.format = WeightFormat::kBF16;
  calls.insert(calls.begin(), empty);
  EXPECT_TRUE(BitEqual(ResultsOf(calls, stream(), Poisoned(GpuWorkspaceFloats(calls, stream()))), expected));
}

TEST_P(SharedTiles, NeedAWorkspaceForDecodesAlone) {
  ProjectionParams params{.rows = 9, .weight = {.format = WeightFormat::kBF16, .rows = 100, .cols = 64}};
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), 64 * 256);
  params.rows = 8;
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), 0);
  params.rows = 257;
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), 0);
  params.rows = 256;
  params.weight.rows = int64_t{1} << 30;
  EXPECT_EQ(GpuWorkspaceFloats(params, stream()), 0);
  for (const int64_t outputs : {int64_t{0}, int64_t{-1000}, std::numeric_limits<int64_t>::max()}) {
    params.weight.rows = outputs;
    EXPECT_EQ(GpuWorkspaceFloats(std::vector<ProjectionParams>{params, params}, stream()), 0) << outputs;
  }
}

}  // namespace
}  // namespace gdn::shared_tiles_test
