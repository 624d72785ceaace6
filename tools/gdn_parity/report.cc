#include "tools/gdn_parity/report.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/gdn_parity/dump.h"

namespace gdn::parity {
namespace {

struct Widths {
  size_t test = 4;
  size_t shape = 5;
};

Widths ColumnWidths(const std::vector<ParityCase>& cases) {
  Widths widths;
  for (const ParityCase& c : cases) {
    widths.test = std::max(widths.test, c.test.size());
    widths.shape = std::max(widths.shape, c.shape.size());
  }
  return widths;
}

uint64_t CaseSeed(const ParityCase& c, uint64_t seed) {
  Hasher hasher;
  hasher.UpdateInt(static_cast<int64_t>(seed));
  for (const std::string* field : {&c.suite, &c.test, &c.shape}) hasher.UpdateField(*field);
  return hasher.Finish().low;
}

// Why `c` is not run on `backend`; empty where it is.
std::string NotOffered(const ParityCase& c, const Backend& backend, const absl::Status& gpu) {
  if (!c.out_of_scope.empty()) return c.out_of_scope;
  if (c.gpu_only && !gpu.ok()) return std::string(gpu.message());
  if (c.slow_on_executor && backend.info().name == "host") return "too slow for the executor";
  if (c.large && backend.info().name != "gpu") return "a shape for real GPUs";
  return "";
}

}  // namespace

absl::StatusOr<std::vector<ParityCase>> SelectCases(const std::vector<ParityCase>& cases, const std::string& suite,
                                                    const std::string& test, int phase) {
  std::vector<ParityCase> in_suite;
  std::set<std::string> suites;
  std::set<std::string> tests;
  for (const ParityCase& c : cases) {
    suites.insert(c.suite);
    if (!suite.empty() && c.suite != suite) continue;
    tests.insert(c.test);
    in_suite.push_back(c);
  }
  if (in_suite.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no suite named '", suite, "'; there are: ", absl::StrJoin(suites, ", ")));
  }
  std::vector<ParityCase> chosen;
  std::copy_if(in_suite.begin(), in_suite.end(), std::back_inserter(chosen),
               [&test](const ParityCase& c) { return test.empty() || c.test == test; });
  if (chosen.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no test named '", test, "'",
                                                   suite.empty() ? "" : absl::StrCat(" in suite ", suite),
                                                   "; there are: ", absl::StrJoin(tests, ", ")));
  }
  if (phase == 0) return chosen;
  std::set<int> phases;
  for (const ParityCase& c : chosen) {
    if (c.phase != 0) phases.insert(c.phase);
  }
  if (phases.count(phase) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no phase ", phase, " among the chosen cases; there are: ", absl::StrJoin(phases, ", ")));
  }
  chosen.erase(std::remove_if(chosen.begin(), chosen.end(), [phase](const ParityCase& c) { return c.phase != phase; }),
               chosen.end());
  return chosen;
}

void ListCases(const std::vector<ParityCase>& cases, std::ostream& out) {
  std::vector<std::pair<std::string, int>> lines;  // in the list's order
  for (const ParityCase& c : cases) {
    std::string name = absl::StrFormat("%-10s  %s", c.suite, c.test);
    const auto known =
        std::find_if(lines.begin(), lines.end(), [&name](const auto& line) { return line.first == name; });
    if (known == lines.end()) {
      lines.emplace_back(std::move(name), 1);
    } else {
      ++known->second;
    }
  }
  for (const auto& [name, shapes] : lines) out << absl::StrFormat("%-46s %3d shapes\n", name, shapes);
}

Summary RunCases(const std::vector<ParityCase>& cases, Backend& backend, uint64_t seed, std::ostream& out) {
  const Widths widths = ColumnWidths(cases);
  const int test_width = static_cast<int>(widths.test);
  const int shape_width = static_cast<int>(widths.shape);
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
    SetDumpRow(c.suite, c.test, c.shape, c.tolerance);
    RandomTensor random(CaseSeed(c, seed));
    const absl::StatusOr<Difference> result = c.run(backend, random);
    const bool passed = result.ok() && result->relative_norm <= c.tolerance && result->max_relative <= c.max_tolerance;
    ++(passed ? summary.passed : summary.failed);
    const Difference difference = result.value_or(Difference{});
    if (result.ok()) {
      out << absl::StrFormat("%11.3e  %11.3e  %9.1e  %11.3e  %9.1e  ", difference.max_abs, difference.max_relative,
                             c.max_tolerance, difference.relative_norm, c.tolerance);
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
