#include <cmath>
#include <limits>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/null/null_backend.h"
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
    std::ostringstream out;
    EXPECT_EQ(RunCases({c}, *backend, 1, out).failed, 1) << out.str();
  }
}

TEST(Parity, EveryCasePassesOnTheCpu) {
  const auto backend = MakeBackend();
  std::ostringstream out;
  const Summary summary = RunCases(AllCases(), *backend, /*seed=*/20, out);
  EXPECT_EQ(summary.failed, 0) << out.str();
  EXPECT_EQ(summary.passed, static_cast<int>(AllCases().size()));
}

// The narrower instruction sets have tails and register tiles of their own, and run nowhere else on a wide machine.
TEST(Parity, EveryCasePassesOnEveryInstructionSetOfThisProcessor) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const auto backend = MakeBackend();
    std::ostringstream out;
    EXPECT_EQ(RunCases(AllCases(), *backend, /*seed=*/3, out).failed, 0) << hwy::TargetName(target) << "\n"
                                                                         << out.str();
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
  EXPECT_THAT(std::string(suite.status().message()), HasSubstr("delta_rule, layer, layer_ops"));
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
