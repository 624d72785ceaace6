#include "kernels/null/null_backend.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/slot_access.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/refusal.h"

namespace gdn {
namespace {

constexpr float kUntouched = -7.0f;  // what PackedRows fills its outputs with

TEST(NullBackend, SaysWhatItIs) {
  const auto backend = MakeNullBackend();
  EXPECT_EQ(backend->info().name, "null");
  EXPECT_EQ(backend->info().numerics_id, "null");
}

TEST(NullBackend, MemoryAndSlotsWork) {
  const auto backend = MakeNullBackend();
  const DeviceBuffer buffer = *DeviceBuffer::Make(*backend, 8);
  const std::vector<float> in = {1.0f, 2.0f};
  std::vector<float> out(2);
  ASSERT_TRUE(backend->CopyIn(buffer.data(), in.data(), 8).ok());
  ASSERT_TRUE(backend->CopyOut(out.data(), buffer.data(), 8).ok());
  EXPECT_EQ(in, out);

  const LayerDims dims = OperatorDims(1, 1, 2, 2);
  HostStatePool pool(dims, 1);
  const SlotImage image{.base = {1, 2, 3, 4}, .log_k = {}, .log_u = {}, .log_g = {}, .conv = {}};
  ASSERT_TRUE(WriteSlot(*backend, pool.view(), 0, 0, image).ok());
  EXPECT_EQ(ReadSlot(*backend, pool.view(), 0, 0, 0)->base, image.base);
  ASSERT_TRUE(backend->ZeroSlot(pool.view(), 0).ok());
  EXPECT_THAT(pool.slot(0), testing::Each(0.0f));
}

TEST(NullBackend, StepsComputeNothingButLogsGrowAndFold) {
  const auto backend = MakeNullBackend();
  GdnLayerRunner runner(*backend);
  LayerProblem problem({}, /*slots=*/2);
  std::vector<Rows> rows = {{.slot = 0, .log_length = 15, .x = problem.Inputs(1)},
                            {.slot = 1, .log_length = 3, .x = problem.Inputs(4)},
                            {.slot = -1, .log_length = 2, .x = problem.Inputs(1)}};
  const std::vector<float> y = problem.Decode(runner, rows);
  EXPECT_THAT(SliceRows(y, problem.hidden_size(), 0, 5), testing::Each(kUntouched));
  EXPECT_EQ(rows[0].log_length, 0);
  EXPECT_EQ(rows[1].log_length, 7);
  EXPECT_EQ(rows[2].log_length, 2);
  EXPECT_THAT(problem.pool().slot(0), testing::Each(0.0f));
  EXPECT_THAT(problem.Prefill(runner, {{.slot = 0, .x = problem.Inputs(40)}}), testing::Each(kUntouched));
}

TEST(NullBackend, RefusesWhatARealBackendRefuses) {
  const auto backend = MakeNullBackend();
  EXPECT_THAT(backend->Projection({.rows = 1, .weight = PlainMatrix(DType::kF32, nullptr, 1, 1)}), IsInvalid(""));
  EXPECT_THAT(backend->Gating({.value_heads = 1, .rows = 1}), IsInvalid(""));
  EXPECT_THAT(backend->GatedRmsNorm({.value_dim = 1, .rows = -1}), IsInvalid(""));
  MaterializeStateParams fold;
  fold.count = -1;
  EXPECT_THAT(backend->MaterializeState(fold), IsInvalid(""));
}

}  // namespace
}  // namespace gdn
