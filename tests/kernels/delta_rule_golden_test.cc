// The golden core vectors through each form of the delta rule, on every instruction set this machine can run.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/test_backend.h"

namespace gdn::delta_rule_golden_test {
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
  std::vector<GoldenCore> vectors;  // of a decay a head, and of one a key channel
  for (const char* folder : {"/tests/golden/core", "/tests/golden/core_kda"}) {
    const absl::StatusOr<std::vector<GoldenCore>> of_folder = LoadGoldenCore(std::string(GDN_SOURCE_DIR) + folder);
    ASSERT_TRUE(of_folder.ok()) << of_folder.status();
    vectors.insert(vectors.end(), of_folder->begin(), of_folder->end());
  }
  hwy::SetSupportedTargetsForTest(0);
  const int64_t supported = hwy::SupportedTargets();
  double worst = 0.0;
  // Better targets are lower bits: mask them off one by one.
  for (int64_t mask = supported; mask != 0; mask &= mask - 1) {
    hwy::SetSupportedTargetsForTest(mask);
    const std::unique_ptr<Backend> backend = *MakeBackend("cpu");
    for (const GoldenCore& golden : vectors) {
      SCOPED_TRACE(golden.name + " on " + hwy::TargetName(mask & -mask));
      const int64_t elements = golden.inputs.dims.state_elements();
      DecodeSlots slots(*backend, golden.inputs.dims, golden.sequences);
      std::vector<int32_t> on(golden.sequences);
      std::iota(on.begin(), on.end(), 0);
      for (const int32_t i : on) {
        slots.SetBase(i, absl::MakeSpan(golden.initial_state).subspan(i * elements, elements));
      }
      const std::vector<float> output =
          slots.Run(GetParam(), golden.inputs, std::vector<int32_t>(golden.sequences, golden.length()), on);
      std::vector<float> state;
      for (const int32_t i : on) {
        Append(slots.Base(i), state);
      }
      const double output_error = RelativeNormError(output, golden.output);
      const double state_error = RelativeNormError(state, golden.final_state);
      EXPECT_LE(output_error, Tolerance(GetParam()));
      EXPECT_LE(state_error, Tolerance(GetParam()));
      worst = std::max({worst, output_error, state_error});
    }
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
  std::printf("%s: worst relative norm error %.2e\n", DeltaRulePathName(GetParam()), worst);
}

// The double references, which backends are held to.
TEST(DeltaRuleGoldenReference, MatchesFloat64ByScanAndByDecode) {
  const std::unique_ptr<Backend> reference = *MakeBackend("reference");
  const absl::StatusOr<std::vector<GoldenCore>> vectors = LoadGoldenCore(GDN_SOURCE_DIR "/tests/golden/core_kda");
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  for (const GoldenCore& golden : *vectors) {
    ASSERT_TRUE(golden.inputs.dims.decays_by_channel());
    for (const DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kDecode}) {
      SCOPED_TRACE(golden.name + " " + DeltaRulePathName(path));
      const int64_t elements = golden.inputs.dims.state_elements();
      DecodeSlots slots(*reference, golden.inputs.dims, golden.sequences);
      std::vector<int32_t> on(golden.sequences);
      std::iota(on.begin(), on.end(), 0);
      for (const int32_t i : on) {
        slots.SetBase(i, absl::MakeSpan(golden.initial_state).subspan(i * elements, elements));
      }
      const std::vector<float> output =
          slots.Run(path, golden.inputs, std::vector<int32_t>(golden.sequences, golden.length()), on);
      EXPECT_LE(RelativeNormError(output, golden.output), Tolerance(DeltaRulePath::kScan));
      std::vector<float> state;
      for (const int32_t i : on) Append(slots.Base(i), state);
      EXPECT_LE(RelativeNormError(state, golden.final_state), Tolerance(DeltaRulePath::kScan));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, DeltaRuleGolden, ::testing::ValuesIn(kDeltaRulePaths),
                         [](const auto& test) { return DeltaRulePathName(test.param); });

}  // namespace
}  // namespace gdn::delta_rule_golden_test
