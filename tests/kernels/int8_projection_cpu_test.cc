// Int8 products on the CPU: every instruction set, its rounding of inputs, its memory.

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/product_math.h"
#include "gmock/gmock.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/processor.h"
#include "kernels/projection/projection.h"
#include "tests/kernels/guarded_bytes.h"
#include "tests/kernels/quantized_problem.h"
#include "tests/support/compare.h"

namespace gdn::int8_projection_cpu_test {
namespace {

std::vector<WeightFormat> IntegerFormats() {
  std::vector<WeightFormat> formats;
  for (const WeightFormat format : kWeightFormats) {
    if (HasIntegerWeights(format)) formats.push_back(format);
  }
  return formats;
}

// Restores the best instruction set.
class Int8OnACpu : public testing::Test {
 protected:
  ~Int8OnACpu() override { EXPECT_EQ(UseSimdTarget(""), absl::OkStatus()); }

  // Calls function(name) while the instruction set `name` is in use, for those that this processor and build have. ""
  // is the best one.
  template <typename Function>
  static int ForTargets(const std::vector<std::string>& names, const Function& function) {
    int targets = 0;
    for (const std::string& name : names) {
      if (!UseSimdTarget(name).ok()) continue;
      ++targets;
      function(name);
    }
    return targets;
  }

  ThreadPool pool_{2};
  const std::vector<std::string> all_targets_ = {"", "avx3", "avx2", "sse4", "scalar"};
};

TEST_F(Int8OnACpu, InstructionSetsWithFusedMultiplyAddGiveTheSameBits) {
  for (const WeightFormat format : IntegerFormats()) {
    for (const int64_t rows : {1, 3, 4, 5, 12, 31}) {
      Int8Problem problem(format, rows, /*outputs=*/45, /*features=*/512);
      const auto run = [&](const ProjectionParams& params) { return ProjectionCpu(params, pool_); };
      std::vector<float> best;
      ForTargets({"", "avx3", "avx2"}, [&](const std::string& name) {
        const std::vector<float> y = Project(problem.params, run);
        if (best.empty()) best = y;
        EXPECT_TRUE(BitEqual(y, best)) << WeightFormatName(format) << ", " << rows << " rows, " << name;
      });
    }
  }
}

// A matrix may be the last thing in the mapping of its file. Units of four blocks may be cut.
TEST_F(Int8OnACpu, ReadsNothingPastTheMatrixAndWritesNothingPastTheOutputs) {
  const auto run = [&](const ProjectionParams& params) { return ProjectionCpu(params, pool_); };
  const int targets = ForTargets(all_targets_, [&](const std::string& name) {
    for (const WeightFormat format : IntegerFormats()) {
      for (const int64_t blocks : {1, 2, 3}) {
        const int64_t features = blocks * BlockOf(format).weights;
        for (const int64_t rows : {1, 2, 3, 5, 13}) {
          for (const int64_t outputs : {1, 5, 34}) {
            Int8Problem problem(format, rows, outputs, features);
            const std::vector<float> expected = Project(problem.params, run);
            const auto& bytes = problem.weights.bytes;
            const GuardedBytes guarded(std::string(bytes.begin(), bytes.end()));
            problem.params.weight.data = guarded.data();
            const std::vector<float> y = Project(problem.params, run);
            EXPECT_TRUE(BitEqual(y, expected)) << WeightFormatName(format) << " " << name;
            for (int64_t row = 0; row < rows; ++row) {
              for (int64_t i = outputs; i < problem.params.y_stride; ++i) {
                ASSERT_EQ(y[static_cast<size_t>(row * problem.params.y_stride + i)], kUntouched)
                    << WeightFormatName(format) << " " << name;
              }
            }
          }
        }
      }
    }
  });
  EXPECT_GE(targets, 2);  // the scalar one, and this processor's best
}

// Each weight matrix row has a single 1, so outputs are the rounded inputs themselves.
TEST_F(Int8OnACpu, RoundsInputsAsTheContractDoes) {
  constexpr int64_t kFeatures = 3 * kInt8Block;
  constexpr int64_t kRows = 7;
  constexpr WeightBlock kBlock = BlockOf(WeightFormat::kQ8_0);
  std::vector<uint8_t> bytes(kFeatures * RowBytes(WeightFormat::kQ8_0, kFeatures));
  for (int64_t row = 0; row < kFeatures; ++row) {
    uint8_t* block = &bytes[(row * (kFeatures / kBlock.weights) + row / kBlock.weights) * kBlock.bytes];
    const uint16_t one = FloatToF16(1.0f);
    std::memcpy(block, &one, sizeof(one));
    block[2 + row % kBlock.weights] = 1;
  }
  std::vector<float> x = Random(9).Normal(kRows * kFeatures);
  // Numbers in the middle of two integers; a block of zeros; one that counts as zeros, and one that does barely not.
  for (int64_t i = 0; i < kInt8Block; ++i) x[i] = i == 0 ? 127.0f : static_cast<float>(i - 16) + 0.5f;
  for (int64_t i = 0; i < kInt8Block; ++i) x[kFeatures + i] = 0.0f;
  for (int64_t i = 0; i < kInt8Block; ++i) x[2 * kFeatures + i] *= 0x1p-110f;
  for (int64_t i = 0; i < kInt8Block; ++i) x[3 * kFeatures + i] = i == 5 ? -kInt8Smallest : 0.3f * kInt8Smallest;
  for (int64_t i = 0; i < kInt8Block; ++i) x[4 * kFeatures + i] *= 3e37f;
  ForTargets(all_targets_, [&](const std::string& name) {
    for (const int64_t rows : {int64_t{2}, kRows}) {
      for (int64_t first = 0; first + rows <= kRows; first += rows) {
        std::vector<float> y(kRows * kFeatures);
        ASSERT_EQ(ProjectionCpu({.math = ProductMath::kInt8,
                                 .rows = rows,
                                 .x = x.data() + first * kFeatures,
                                 .x_stride = kFeatures,
                                 .weight = {WeightFormat::kQ8_0, bytes.data(), kFeatures, kFeatures},
                                 .y = y.data(),
                                 .y_stride = kFeatures},
                                pool_),
                  absl::OkStatus());
        for (int64_t i = 0; i < rows * kFeatures; i += kInt8Block) {
          int8_t q[kInt8Block];
          const float scale = RoundToInt8(&x[first * kFeatures + i], q);
          for (int64_t j = 0; j < kInt8Block; ++j) {
            ASSERT_EQ(y[i + j], scale * static_cast<float>(q[j])) << name << " " << first << " " << i << " " << j;
          }
        }
      }
    }
  });
}

// Backend::Prepare reserves what ScratchFloats says.
TEST_F(Int8OnACpu, TakesAsMuchScratchAsItSays) {
  constexpr float kPattern = -12345.0f;
  constexpr int64_t kMore = 1 << 20;
  for (const WeightFormat format : IntegerFormats()) {
    for (const int64_t rows : {1, 4, 5, 50}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        Int8Problem problem(format, rows, /*outputs=*/131, /*features=*/256);
        std::vector<float> y(rows * problem.params.y_stride);
        problem.params.y = OutputTensor(y.data(), dtype);
        const int64_t floats = ScratchFloats(problem.params, pool_.threads());
        ScratchArena arena;
        ASSERT_EQ(arena.Reserve(floats + kMore), absl::OkStatus());
        const ScratchArena::InUse in_use(arena);
        float* all = nullptr;
        {
          const absl::StatusOr<WorkerScratch> scratch = WorkerScratch::Make(/*workers=*/1, floats + kMore);
          ASSERT_EQ(scratch.status(), absl::OkStatus());
          all = scratch->piece(0);
          std::fill_n(all, floats + kMore, kPattern);
        }
        for (const ProjectionPath path : kPaths) {
          problem.params.path = path;
          ASSERT_EQ(ProjectionCpu(problem.params, pool_), absl::OkStatus());
          // Scratch memory is zeroed when it is taken.
          int64_t taken = floats + kMore;
          while (taken > 0 && all[taken - 1] == kPattern) --taken;
          EXPECT_EQ(taken, floats) << WeightFormatName(format) << ", " << rows << " rows";
        }
      }
    }
  }
}

}  // namespace
}  // namespace gdn::int8_projection_cpu_test
