// Faults planted into a product kernel's own source: the build makes copies of transpose_gpu.hip, one without its
// barrier and one that reads an element past its tile's row, and the executor must see both.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "kernels/primitives/transpose/transpose.h"

namespace gdn {

absl::Status TransposeWithoutBarrierGpu(const TransposeParams& params, const gpu::Stream& stream);
absl::Status TransposeOffByOneGpu(const TransposeParams& params, const gpu::Stream& stream);

namespace planted_faults_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status RunTranspose(absl::Status (*transpose)(const TransposeParams&, const gpu::Stream&), int wave_width) {
  constexpr int kRows = 70;
  constexpr int kCols = 45;
  std::vector<float> x(kRows * kCols);
  std::iota(x.begin(), x.end(), 0.0f);
  std::vector<float> y(x.size());
  return transpose({.batch = 1, .rows = kRows, .cols = kCols, .x = x.data(), .y = y.data()},
                   {.handle = nullptr, .wave_width = wave_width, .processors = 2});
}

class PlantedIntoTranspose : public ::testing::TestWithParam<int> {};

TEST_P(PlantedIntoTranspose, NothingRunsClean) { EXPECT_TRUE(RunTranspose(TransposeGpu, GetParam()).ok()); }

TEST_P(PlantedIntoTranspose, ARemovedBarrierIsSeen) {
  const absl::Status status = RunTranspose(TransposeWithoutBarrierGpu, GetParam());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("transpose"), HasSubstr("an LDS element is read")));
  std::printf("  removed barrier: %s\n", std::string(status.message()).c_str());
}

TEST_P(PlantedIntoTranspose, AnOffByOneTailIsSeen) {
  const absl::Status status = RunTranspose(TransposeOffByOneGpu, GetParam());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("transpose"), HasSubstr("nothing has written")));
  std::printf("  off by one: %s\n", std::string(status.message()).c_str());
}

INSTANTIATE_TEST_SUITE_P(WaveWidths, PlantedIntoTranspose, ::testing::Values(64, 32));

}  // namespace
}  // namespace planted_faults_test
}  // namespace gdn
