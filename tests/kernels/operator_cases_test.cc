// The rows of tools/gdn_parity/cases on the GPU sources: a test a suite, with the SIMT executor's waves of 64 and of 32
// lanes, or on the device. (On the CPU they run in gdn_parity_test, for every instruction set.)

#include <algorithm>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tools/gdn_parity/report.h"

namespace gdn::parity {
namespace {

struct SuiteRun {
  std::string suite;
  int lanes = 0;  // of a wave of the executor; 0: on the device
};

std::string RunName(const SuiteRun& run) {
  return run.lanes == 0 ? absl::StrCat(run.suite, "_on_the_device") : absl::StrCat(run.suite, "_wave", run.lanes);
}

std::ostream& operator<<(std::ostream& out, const SuiteRun& run) { return out << RunName(run); }

std::vector<SuiteRun> AllRuns() {
  std::set<std::string> suites;
  for (const ParityCase& c : AllCases()) suites.insert(c.suite);
  const bool on_host = GpuBackendName() == std::string_view("host");
  std::set<std::string> left_out;
  // On the executor these take long, and the operators' own tests run such shapes there.
  if (on_host) left_out.insert({"delta_rule", "layer", "layer_ops"});
#ifdef GDN_SANITIZED
  left_out.insert({"fla", "llama"});  // sanitized fibers are slow
#endif
  std::vector<SuiteRun> runs;
  for (const std::string& suite : suites) {
    if (left_out.count(suite) > 0) continue;
    if (!on_host) runs.push_back({suite});
    for (const int lanes : {64, 32}) {
      if (on_host) runs.push_back({suite, lanes});
    }
  }
  return runs;
}

class OperatorCases : public testing::TestWithParam<SuiteRun> {};

TEST_P(OperatorCases, AreWithinTheirTolerances) {
  const auto backend = MakeGpuBackendWithWaves(GetParam().lanes);
  if (!backend.ok() && GetParam().lanes == 0) GTEST_SKIP() << backend.status();
  ASSERT_TRUE(backend.ok()) << backend.status();
  std::ostringstream out;
  const Summary summary = RunCases(*SelectCases(AllCases(), GetParam().suite, ""), **backend, /*seed=*/1, out);
  EXPECT_EQ(summary.failed, 0) << out.str();
  EXPECT_GT(summary.passed, 0);
}

INSTANTIATE_TEST_SUITE_P(, OperatorCases, testing::ValuesIn(AllRuns()),
                         [](const auto& suite_run) { return RunName(suite_run.param); });

}  // namespace
}  // namespace gdn::parity
