#include "tools/gdn_parity/report.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/hash.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/gdn_parity/dump.h"

namespace gdn::parity {
namespace {

uint64_t CaseSeed(const ParityCase& c, uint64_t seed) {
  Hasher hasher;
  hasher.UpdateInt(static_cast<int64_t>(seed));
  for (const std::string* field : {&c.suite, &c.test, &c.shape}) hasher.UpdateField(*field);
  return hasher.Finish().low;
}

bool IsRealGpu(const Backend& backend) {
  return backend.info().name == "gpu" || (backend.info().name == "libgdn" && !backend.info().unified_memory);
}

// Why `c` is not run on `backend`; empty where it is.
std::string NotOffered(const ParityCase& c, const Backend& backend, const absl::Status& gpu) {
  if (!c.out_of_scope.empty()) return c.out_of_scope;
  if (c.gpu_only && !gpu.ok()) return std::string(gpu.message());
  if (c.slow_on_executor && backend.info().name == "host") return "too slow for the executor without --slow";
  if (c.large && !IsRealGpu(backend)) return "a shape for real GPUs";
  return "";
}

}  // namespace

absl::StatusOr<std::vector<ParityCase>> SelectCases(const std::vector<ParityCase>& cases, const std::string& suite,
                                                    const std::string& test, int phase) {
  std::set<std::string> suites, tests;
  std::set<int> phases;
  std::vector<ParityCase> chosen;
  bool has_test = false;
  for (const ParityCase& c : cases) {
    suites.insert(c.suite);
    if (!suite.empty() && c.suite != suite) continue;
    tests.insert(c.test);
    if (!test.empty() && c.test != test) continue;
    has_test = true;
    if (c.phase != 0) phases.insert(c.phase);
    if (phase == 0 || c.phase == phase) chosen.push_back(c);
  }
  if (!chosen.empty()) return chosen;
  const auto none = [](const std::string& what, const auto& there_are) {
    return absl::InvalidArgumentError(absl::StrCat("no ", what, "; there are: ", absl::StrJoin(there_are, ", ")));
  };
  if (tests.empty()) return none(absl::StrCat("suite named '", suite, "'"), suites);
  if (has_test) return none(absl::StrCat("phase ", phase, " among the chosen cases"), phases);
  return none(absl::StrCat("test named '", test, "'", suite.empty() ? "" : absl::StrCat(" in suite ", suite)), tests);
}

void ListCases(const std::vector<ParityCase>& cases, std::ostream& out) {
  std::map<std::string, int> shapes;
  std::vector<std::string> names;  // in the list's order
  for (const ParityCase& c : cases) {
    const std::string name = absl::StrFormat("%-10s  %s", c.suite, c.test);
    if (shapes[name]++ == 0) names.push_back(name);
  }
  for (const std::string& name : names) out << absl::StrFormat("%-46s %3d shapes\n", name, shapes[name]);
}

Summary RunCases(const std::vector<ParityCase>& cases, Backend& backend, uint64_t seed, std::ostream& out) {
  size_t test_width = 4, shape_width = 5;
  for (const ParityCase& c : cases) {
    test_width = std::max(test_width, c.test.size());
    shape_width = std::max(shape_width, c.shape.size());
  }
  const absl::Status gpu = GpuStreamOf(backend).status();
  out << absl::StrFormat("backend %s, numerics %s, seed %d\n", backend.info().name, backend.info().numerics_id, seed);
  out << absl::StrFormat("%-10s  %-*s  %-*s  %11s  %11s  %9s  %11s  %9s\n", "suite", test_width, "test", shape_width,
                         "shape", "max|d|", "max|d|/|r|", "tolerance", "rel. norm", "tolerance");
  Summary summary;
  for (const ParityCase& c : cases) {
    out << absl::StrFormat("%-10s  %-*s  %-*s  ", c.suite, test_width, c.test, shape_width, c.shape);
    if (const std::string reason = NotOffered(c, backend, gpu); !reason.empty()) {
      ++summary.not_offered;
      out << "not offered: " << reason << std::endl;
      continue;
    }
    const ProductMath math = backend.info().math;
    const Limits rounded = math == ProductMath::kInt8 ? c.in_int8 : math == ProductMath::kHalf ? c.in_half : Limits{};
    const double tolerance = rounded.norm > 0.0 ? rounded.norm : c.tolerance;
    const double max_tolerance = rounded.norm > 0.0 ? rounded.max : c.max_tolerance;
    SetDumpRow(c.suite, c.test, c.shape, tolerance);
    RandomTensor random(CaseSeed(c, seed));
    const absl::StatusOr<Difference> result = c.run(backend, random);
    // libgdn has no projections, and some backends no kernels for quantised weights.
    if (absl::IsUnimplemented(result.status()) &&
        (backend.info().name == "libgdn" || ErrorReason(result.status()) == reason::kDeviceUnsupported)) {
      ++summary.not_offered;
      out << "not offered: " << std::string(result.status().message()) << std::endl;
      continue;
    }
    const bool passed = result.ok() && result->relative_norm <= tolerance && result->max_relative <= max_tolerance;
    ++(passed ? summary.passed : summary.failed);
    const Difference difference = result.value_or(Difference{});
    if (result.ok()) {
      out << absl::StrFormat("%11.3e  %11.3e  %9.1e  %11.3e  %9.1e  ", difference.max_abs, difference.max_relative,
                             max_tolerance, difference.relative_norm, tolerance);
    } else {
      out << result.status().ToString() << "  ";
    }
    out << (passed ? "PASS" : "FAIL") << std::endl;  // flushed: a run takes a while
  }
  out << absl::StrFormat("%d passed, %d failed, %d not offered by this backend\n", summary.passed, summary.failed,
                         summary.not_offered);
  return summary;
}

}  // namespace gdn::parity
