// gdn_parity's own promises: faults are reported, rows do not depend on one another, suites are whole.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu/dot2_probe.h"
#include "kernels/null/null_backend.h"
#include "tools/gdn_parity/dot2_report.h"
#include "tools/gdn_parity/report.h"

namespace gdn::parity {
namespace {

using testing::HasSubstr;

std::unique_ptr<Backend> MakeBackend() { return *MakeCpuBackend({.threads = 2}); }

// A case whose backend output is off by `fault` in its middle element.
ParityCase FaultyCase(float fault) {
  return {"planted", "fault", "n=1001", kElementwiseTolerance,
          [fault](Backend&, RandomTensor& random) -> absl::StatusOr<Difference> {
            const std::vector<float> expected = random.Normal(1001);
            std::vector<float> actual = expected;
            actual[500] += fault;
            return Compare(actual, expected);
          }};
}

TEST(Parity, APlantedFaultFailsAndItsAbsencePasses) {
  const auto backend = MakeBackend();
  std::ostringstream out;
  EXPECT_EQ(RunCases({FaultyCase(0.0f)}, *backend, 1, out).failed, 0);
  EXPECT_EQ(RunCases({FaultyCase(1e-3f), FaultyCase(0.0f)}, *backend, 1, out).failed, 1);
  EXPECT_EQ(RunCases({FaultyCase(NAN)}, *backend, 1, out).failed, 1);
  EXPECT_THAT(out.str(), HasSubstr("FAIL"));
  EXPECT_THAT(out.str(), HasSubstr("1 passed, 1 failed"));
}

TEST(Parity, WhatADot2ComputesIsNamedOrComparedWithTheNearestVariant) {
  const gpu::Dot2Variant once{gpu::Dot2Rounding::kOnce, /*flushes_floats=*/true};
  std::vector<float> answers;
  for (const gpu::Dot2Question& q : gpu::Dot2Questions()) answers.push_back(gpu::Dot2As(once, q.a, q.b, q.c));
  const std::string known = Dot2Report(answers);
  EXPECT_EQ(known.substr(0, known.find('\n')), "dot2: dot2oncef");
  EXPECT_THAT(known,
              HasSubstr("rounds once; subnormal float32 numbers count as zero, subnormal fp16 numbers are kept"));
  for (const size_t i : {size_t{3}, answers.size() - 1}) answers[i] = 42.0f;
  const std::string unknown = Dot2Report(answers);
  EXPECT_THAT(unknown, testing::StartsWith("dot2: like no known variant"));
  EXPECT_THAT(unknown, HasSubstr(absl::StrCat("dot2oncef  ", answers.size() - 2, " of ", answers.size(), " answers")));
  EXPECT_THAT(unknown, HasSubstr("differs from dot2oncef"));
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(unknown, ": 42280000, not ")).size(), 3);
}

TEST(Parity, ACaseThatReturnsAnErrorFails) {
  const auto backend = MakeBackend();
  std::ostringstream out;
  const ParityCase broken{"planted", "error", "", 1.0, [](Backend&, RandomTensor&) -> absl::StatusOr<Difference> {
                            return absl::InternalError("lost the device");
                          }};
  EXPECT_EQ(RunCases({broken}, *backend, 1, out).failed, 1);
  EXPECT_THAT(out.str(), HasSubstr("lost the device"));
}

// A case that passes on a backend that computes nothing would compare nothing.
TEST(Parity, EveryCaseFailsOnABackendThatComputesNothing) {
  const auto backend = MakeNullBackend();
  for (const ParityCase& c : AllCases()) {
    if (c.gpu_only) continue;
    std::ostringstream out;
    const Summary summary = RunCases({c}, *backend, 1, out);
    EXPECT_EQ(summary.failed + summary.not_offered, 1) << out.str();
  }
}

// One far off among many that are right: the norm does not see it, the largest difference does.
TEST(Parity, BothMeasuresAreHeldAgainstTheirTolerances) {
  const auto backend = MakeBackend();
  ParityCase outlier = FaultyCase(1e-3f);
  outlier.tolerance = 1.0;
  std::ostringstream out;
  EXPECT_EQ(RunCases({outlier}, *backend, 1, out).failed, 1);
  outlier.max_tolerance = 1.0;
  EXPECT_EQ(RunCases({outlier}, *backend, 1, out).failed, 0);
  outlier.tolerance = 1e-6;
  EXPECT_EQ(RunCases({outlier}, *backend, 1, out).failed, 1);
}

TEST(Parity, CasesThatLaunchKernelsAreNotOfferedByABackendWithoutAStreamAndCountedApart) {
  const auto backend = MakeBackend();
  ParityCase launching = FaultyCase(0.0f);
  launching.gpu_only = true;
  std::ostringstream out;
  const Summary summary = RunCases({launching, FaultyCase(0.0f)}, *backend, 1, out);
  EXPECT_EQ(summary.passed, 1);
  EXPECT_EQ(summary.failed, 0);
  EXPECT_EQ(summary.not_offered, 1);
  EXPECT_THAT(out.str(), HasSubstr("not offered: "));
  EXPECT_THAT(out.str(), HasSubstr("1 passed, 0 failed, 1 not offered by this backend"));
}

TEST(Parity, TheOperatorsOfTheBackendInterfaceAreAllOfferedByTheCpu) {
  for (const ParityCase& c : AllCases()) {
    if (c.suite == "layer_ops" || c.suite == "delta_rule" || c.suite == "layer") {
      EXPECT_FALSE(c.gpu_only) << c.test;
    }
  }
}

TEST(Parity, ThePhasesAreTwentySixTestsInEightPhases) {
  const std::map<int, std::set<std::string>> expected = {
      {1, {"sigmoid", "exp", "mul", "cumsum"}},
      {2, {"tril", "causal_mask", "eye", "solve_tri_small", "solve_tri_64"}},
      {3, {"gemm_nt_naive_small", "gemm_nt_naive_64", "gemm_tn_naive", "gemm_nt_tiled", "gemm_nt_tiled_128"}},
      {4, {"decay_mask_small", "decay_mask_64"}},
      {5, {"attn_matrix_small", "attn_matrix_64"}},
      {6, {"attn_pre_computation", "solve_causal_identity", "intra_chunk_small", "intra_chunk"}},
      {7, {"state_update", "output_with_state"}},
      {8, {"deltanet_single_chunk", "deltanet_full"}}};
  std::map<int, std::set<std::string>> listed;
  for (const ParityCase& c : AllCases()) {
    EXPECT_EQ(c.phase != 0, c.suite == "phases") << c.test;
    if (c.phase != 0) listed[c.phase].insert(c.test);
  }
  EXPECT_EQ(listed, expected);
}

TEST(Parity, APhaseIsChosenByItsNumber) {
  const auto third = SelectCases(AllCases(), "", "", 3);
  ASSERT_TRUE(third.ok());
  for (const ParityCase& c : *third) EXPECT_EQ(c.phase, 3);
  const auto ninth = SelectCases(AllCases(), "phases", "", 9);
  EXPECT_EQ(ninth.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ninth.status().message()), HasSubstr("1, 2, 3, 4, 5, 6, 7, 8"));
  EXPECT_FALSE(SelectCases(AllCases(), "layer", "", 3).ok());
}

// The narrower instruction sets have tails and register tiles of their own, and run nowhere else on a wide machine. The
// test gdn_parity_cpu runs every case on the best set.
TEST(Parity, EveryCasePassesOnEveryNarrowerInstructionSetOfThisProcessor) {
  std::vector<ParityCase> cases = AllCases();
  // The long sequences of extreme gates would take the scalar set minutes; only the best set gets them.
  std::erase_if(cases, [](const ParityCase& c) { return c.suite == "extreme" && c.slow_on_executor; });
  const auto offered = [](const ParityCase& c) { return !c.gpu_only && !c.large && c.out_of_scope.empty(); };
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  targets.erase(std::ranges::min_element(targets));
  for (const int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const auto backend = MakeBackend();
    std::ostringstream out;
    const Summary summary = RunCases(cases, *backend, /*seed=*/3, out);
    EXPECT_EQ(summary.failed, 0) << hwy::TargetName(target) << "\n" << out.str();
    EXPECT_EQ(summary.passed, std::ranges::count_if(cases, offered)) << hwy::TargetName(target);
    EXPECT_EQ(summary.passed + summary.not_offered, static_cast<int>(cases.size())) << hwy::TargetName(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(Parity, ACasesInputsDoNotDependOnWhatElseRuns) {
  const auto backend = MakeBackend();
  const auto last_row = [&](const std::string& suite, const std::string& test) {
    std::ostringstream out;
    RunCases(*SelectCases(AllCases(), suite, test), *backend, 7, out);
    const std::string text = out.str();
    const size_t at = text.find("rows=65 HV=12 |a|~200");
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(last_row("layer_ops", "gating_a_log"), last_row("", "gating_a_log"));
}

TEST(Parity, UnknownNamesAreAnsweredWithThoseThereAre) {
  const auto suite = SelectCases(AllCases(), "kernels", "");
  EXPECT_EQ(suite.status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* name : {"delta_rule", "layer", "layer_ops", "phases"}) {
    EXPECT_THAT(std::string(suite.status().message()), HasSubstr(name));
  }
  const auto test = SelectCases(AllCases(), "delta_rule", "gating_a_log");
  EXPECT_EQ(test.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(test.status().message()), HasSubstr("deferred_decode"));
}

TEST(Parity, ListNamesEverySuiteAndTest) {
  std::ostringstream out;
  ListCases(AllCases(), out);
  for (const ParityCase& c : AllCases()) {
    EXPECT_THAT(out.str(), HasSubstr(c.suite));
    EXPECT_THAT(out.str(), HasSubstr(c.test));
  }
}

TEST(Parity, EveryTestThatHasAPlaceInItsSuiteIsListedThere) {
  std::set<std::pair<std::string, std::string>> listed;
  for (const ParityCase& c : AllCases()) listed.emplace(c.suite, c.test);
  for (const SuiteOrder& order : SuiteOrders()) {
    for (const std::string& test : std::vector<std::string>(absl::StrSplit(order.tests, absl::ByAnyChar(" +")))) {
      EXPECT_EQ(listed.count({order.suite, test}), 1) << order.suite << " " << test;
    }
  }
}

TEST(Difference, TheWorstOfSeveralCallsIsTheWorstOfEachMeasureAndAnErrorComesFirst) {
  const absl::StatusOr<Difference> worst = Worst({Difference{1.0, 0.1, 0.3}, Difference{0.5, 0.2, 0.1}});
  ASSERT_TRUE(worst.ok());
  EXPECT_EQ(worst->max_abs, 1.0);
  EXPECT_EQ(worst->max_relative, 0.2);
  EXPECT_EQ(worst->relative_norm, 0.3);
  EXPECT_EQ(Worst({Difference{}, absl::InternalError("lost the device")}).status().code(), absl::StatusCode::kInternal);
}

TEST(Difference, MeasuresTheLargestAndTheWhole) {
  const Difference difference = Compare({1.0f, 2.0f, 2.5f}, {1.0f, 2.0f, 2.0f});
  EXPECT_DOUBLE_EQ(difference.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(difference.max_relative, 0.25);
  EXPECT_DOUBLE_EQ(difference.relative_norm, 0.5 / 3.0);
}

TEST(Difference, IsAbsoluteAgainstAnAllZeroReferenceAndInfiniteForWhatCannotBeCompared) {
  EXPECT_DOUBLE_EQ(Compare({3.0f, 4.0f}, {0.0f, 0.0f}).relative_norm, 5.0);
  EXPECT_DOUBLE_EQ(Compare({}, {}).relative_norm, 0.0);
  EXPECT_TRUE(std::isinf(Compare({1.0f}, {1.0f, 2.0f}).relative_norm));
  EXPECT_TRUE(std::isinf(Compare({NAN}, {1.0f}).relative_norm));
  EXPECT_TRUE(std::isinf(Compare({std::numeric_limits<float>::infinity()}, {1.0f}).max_abs));
}

}  // namespace
}  // namespace gdn::parity
