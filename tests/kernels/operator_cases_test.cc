// The rows of tools/gdn_parity/cases on the GPU sources: a test a suite, with the SIMT executor's waves of 64 and of 32
// lanes, or on the device. (On the CPU they run in gdn_parity_test, for every instruction set.)

#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/support/test_backend.h"
#include "tools/gdn_parity/report.h"

namespace gdn::parity {
namespace {

struct SuiteRun {
  std::string suite, backend;
};

std::string RunName(const SuiteRun& run) { return run.suite + "_on_" + run.backend; }

std::ostream& operator<<(std::ostream& out, const SuiteRun& run) { return out << RunName(run); }

std::vector<SuiteRun> AllRuns() {
  std::set<std::string> suites;
  for (const ParityCase& c : AllCases()) suites.insert(c.suite);
  std::set<std::string> left_out;
  // On the executor these take long, and the operators' own tests run such shapes there.
  if (GpuBackendName() == "host") left_out.insert({"delta_rule", "layer", "layer_ops"});
#ifdef GDN_SANITIZED
  left_out.insert({"fla", "llama"});  // sanitized fibers are slow
#endif
  // parity_dump_host runs these on waves of 64.
  const std::set<std::string> dumped = {"cache", "ops", "parity", "phases", "shapes"};
  std::vector<SuiteRun> runs;
  for (const std::string& suite : suites) {
    if (left_out.count(suite) > 0) continue;
    for (const std::string& backend : WithGpus({})) {
      if (backend != "host64" || dumped.count(suite) == 0) runs.push_back({suite, backend});
    }
  }
  return runs;
}

class OperatorCases : public testing::TestWithParam<SuiteRun> {};

TEST_P(OperatorCases, AreWithinTheirTolerances) {
  const auto backend = MakeBackend(GetParam().backend);
  if (!backend.ok() && GetParam().backend == "gpu") GTEST_SKIP() << backend.status();
  ASSERT_TRUE(backend.ok()) << backend.status();
  std::ostringstream out;
  const Summary summary = RunCases(*SelectCases(AllCases(), GetParam().suite, ""), **backend, /*seed=*/1, out);
  EXPECT_EQ(summary.failed, 0) << out.str();
  EXPECT_GT(summary.passed, 0);
}

// Runs the chosen rows in a math. The other rows do the same in each math.
template <typename Chosen>
void RunInMath(const std::string& name, ProductMath math, const Chosen& chosen) {
  const auto backend = MakeBackend(name, math);
  if (!backend.ok() && name == "gpu") GTEST_SKIP() << backend.status();
  ASSERT_TRUE(backend.ok()) << backend.status();
  std::vector<ParityCase> cases;
  for (const ParityCase& c : AllCases()) {
    if (chosen(c)) cases.push_back(c);
  }
  std::ostringstream out;
  const Summary summary = RunCases(cases, **backend, /*seed=*/1, out);
  EXPECT_EQ(summary.failed, 0) << out.str();
  EXPECT_EQ(summary.passed, static_cast<int>(cases.size()));
}

class OperatorCasesInInt8 : public testing::TestWithParam<std::string> {};

TEST_P(OperatorCasesInInt8, AreWithinTheirTolerances) {
  RunInMath(GetParam(), ProductMath::kInt8, [](const ParityCase& c) { return c.integer_weights; });
}

class OperatorCasesInHalf : public testing::TestWithParam<std::string> {};

TEST_P(OperatorCasesInHalf, AreWithinTheirTolerances) {
  RunInMath(GetParam(), ProductMath::kHalf, [](const ParityCase& c) {
    const bool rounds = !c.integer_weights || c.test.ends_with("_Q8_0") || c.test.ends_with("_Q4_K");
    return rounds && (c.test.starts_with("projection_") || (c.integer_weights && c.in_half.norm > 0.0));
  });
}

INSTANTIATE_TEST_SUITE_P(, OperatorCasesInHalf, testing::ValuesIn(WithGpus({})),
                         [](const auto& backend) { return backend.param; });

INSTANTIATE_TEST_SUITE_P(, OperatorCasesInInt8, testing::ValuesIn(WithGpus({"cpu"})),
                         [](const auto& backend) { return backend.param; });

INSTANTIATE_TEST_SUITE_P(, OperatorCases, testing::ValuesIn(AllRuns()),
                         [](const auto& suite_run) { return RunName(suite_run.param); });

}  // namespace
}  // namespace gdn::parity
