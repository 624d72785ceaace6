// The golden core vectors through each form of the delta rule, on every instruction set this machine can run.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"

namespace gdn {
namespace {

double Tolerance(DeltaRulePath path) {
  switch (path) {
    case DeltaRulePath::kScan:
      return 5e-7;
    case DeltaRulePath::kDecode:
      return 1e-6;
    case DeltaRulePath::kChunk:
      return 5e-6;
  }
  return 0.0;
}

class DeltaRuleGolden : public ::testing::TestWithParam<DeltaRulePath> {
 protected:
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(DeltaRuleGolden, MatchesFloat64OnEveryInstructionSet) {
  const absl::StatusOr<std::vector<GoldenCore>> vectors = LoadGoldenCore(GDN_SOURCE_DIR "/tests/golden/core");
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  ThreadPool threads(2);
  hwy::SetSupportedTargetsForTest(0);
  const int64_t supported = hwy::SupportedTargets();
  double worst = 0.0;
  // Better targets are lower bits: mask them off one by one.
  for (int64_t mask = supported; mask != 0; mask &= mask - 1) {
    hwy::SetSupportedTargetsForTest(mask);
    for (const GoldenCore& golden : *vectors) {
      SCOPED_TRACE(golden.name + " on " + hwy::TargetName(mask & -mask));
      const int64_t elements = golden.inputs.dims.state_elements();
      HostStatePool pool(golden.inputs.dims, golden.sequences);
      std::vector<int32_t> lengths;
      std::vector<int32_t> slots;
      for (int32_t i = 0; i < golden.sequences; ++i) {
        pool.SetBase(i, absl::MakeSpan(golden.initial_state).subspan(i * elements, elements));
        lengths.push_back(golden.length());
        slots.push_back(i);
      }
      const auto output = RunDeltaRule(GetParam(), golden.inputs, lengths, slots, pool, threads);
      ASSERT_TRUE(output.ok()) << output.status();
      std::vector<float> state;
      for (int32_t i = 0; i < golden.sequences; ++i)
        state.insert(state.end(), pool.base(i).begin(), pool.base(i).end());
      const double output_error = RelativeNormError(*output, golden.output);
      const double state_error = RelativeNormError(state, golden.final_state);
      EXPECT_LE(output_error, Tolerance(GetParam()));
      EXPECT_LE(state_error, Tolerance(GetParam()));
      worst = std::max({worst, output_error, state_error});
    }
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
  std::printf("%s: worst relative norm error %.2e\n", DeltaRulePathName(GetParam()), worst);
}

INSTANTIATE_TEST_SUITE_P(Paths, DeltaRuleGolden,
                         ::testing::Values(DeltaRulePath::kScan, DeltaRulePath::kChunk, DeltaRulePath::kDecode),
                         [](const auto& test) { return DeltaRulePathName(test.param); });

}  // namespace
}  // namespace gdn
