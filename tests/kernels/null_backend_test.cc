#include "kernels/null/null_backend.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/slot_access.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/refusal.h"

namespace gdn::null_backend_test {
namespace {

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

TEST(NullBackend, StepsGiveZerosAndLogsGrowAndFold) {
  const auto backend = MakeNullBackend();
  GdnLayerRunner runner(*backend);
  LayerProblem problem({}, /*slots=*/2);
  std::vector<Rows> rows = {{.slot = 0, .log_length = 15, .x = problem.Inputs(1)},
                            {.slot = 1, .log_length = 3, .x = problem.Inputs(4)},
                            {.slot = -1, .log_length = 2, .x = problem.Inputs(1)}};
  const std::vector<float> y = problem.Decode(runner, rows);
  EXPECT_THAT(SliceRows(y, problem.hidden_size(), 0, 5), testing::Each(0.0f));
  EXPECT_EQ(rows[0].log_length, 0);
  EXPECT_EQ(rows[1].log_length, 7);
  EXPECT_EQ(rows[2].log_length, 2);
  EXPECT_THAT(problem.pool().slot(0), testing::Each(0.0f));
  EXPECT_THAT(problem.Prefill(runner, {{.slot = 0, .x = problem.Inputs(40)}}), testing::Each(0.0f));
}

// Slots are used again: a state must not show what was in its slot before.
TEST(NullBackend, StatesHoldNothingOfWhatWasInTheirSlots) {
  const auto backend = MakeNullBackend();
  constexpr float kOthers = -7.0f;
  const LayerDims dims = OperatorDims(1, 2, 4, 4);
  HostStatePool pool(dims, /*slots=*/2);
  std::ranges::fill(pool.slot(0), kOthers);
  const int32_t fresh = -1, slot = 0, none = 0;
  ASSERT_TRUE(
      backend->MaterializeState({.pool = pool.view(), .count = 1, .src = &fresh, .dst = &slot, .log_lengths = &none})
          .ok());
  EXPECT_THAT(pool.slot(0), testing::Each(0.0f));

  // A fork's first steps: its log is its own, its base another's until the fold.
  std::ranges::fill(pool.slot(0), kOthers);
  Random random(1);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, /*tokens=*/1, random);
  std::vector<float> output(static_cast<size_t>(dims.value_features()), kOthers);
  const int32_t rows[] = {0, 1}, parent = 1;
  const PackedBatch batch{.sequences = 1, .cu_seqlens = rows, .slots = &slot};
  int32_t log_length = 0;
  for (int32_t t = 0; t < kLogCapacity; ++t) {
    ASSERT_TRUE(backend
                    ->DeltaRuleDecode({.rule = MakeDeltaRuleParams(inputs, pool.view(), batch, output),
                                       .log_lengths = &log_length,
                                       .base_slots = &parent})
                    .ok());
    EXPECT_THAT(output, testing::Each(0.0f));
    const int32_t entries = t + 1 < kLogCapacity ? t + 1 : 0;
    ASSERT_EQ(log_length, entries);
    const SlotImage state = *ReadSlot(*backend, pool.view(), 0, entries, t + 1);
    EXPECT_THAT(state.log_k, testing::Each(0.0f)) << t;
    EXPECT_THAT(state.log_u, testing::Each(0.0f)) << t;
    EXPECT_THAT(state.log_g, testing::Each(0.0f)) << t;
    EXPECT_THAT(entries == 0 ? state.base : std::vector<float>(), testing::Each(0.0f)) << "the parent's, a fresh one";
  }
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
}  // namespace gdn::null_backend_test
