// gdn_parity: every operator against its float64 reference, on random inputs.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cpu/cpu_backend.h"
#include "tools/gdn_parity/report.h"

ABSL_FLAG(std::string, backend, "cpu", "Backend to compare with the references.");
ABSL_FLAG(int, threads, 0, "Threads of the CPU backend; 0: one for each processor.");
ABSL_FLAG(std::string, suite, "", "Run this suite only: layer_ops, delta_rule or layer.");
ABSL_FLAG(std::string, test, "", "Run this test only (see --list).");
ABSL_FLAG(uint64_t, seed, 1, "Seed of the random inputs.");
ABSL_FLAG(bool, list, false, "Print suites and tests, run nothing.");

namespace gdn::parity {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

using BackendFactory = std::function<absl::StatusOr<std::unique_ptr<Backend>>()>;

// The backends of this build.
std::map<std::string, BackendFactory> BackendFactories() {
  return {{"cpu", [] { return MakeCpuBackend({.threads = absl::GetFlag(FLAGS_threads)}); }}};
}

absl::StatusOr<std::unique_ptr<Backend>> MakeNamedBackend(const std::string& name) {
  const std::map<std::string, BackendFactory> factories = BackendFactories();
  if (const auto factory = factories.find(name); factory != factories.end()) return factory->second();
  const std::string names = absl::StrJoin(
      factories, ", ", [](std::string* out, const auto& factory) { absl::StrAppend(out, factory.first); });
  return absl::InvalidArgumentError(absl::StrCat("no backend named '", name, "'; this build has: ", names));
}

int UsageError(const absl::Status& status) {
  std::cerr << "gdn_parity: " << std::string(status.message()) << "\n";
  return kExitUsage;
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "compares every operator of a backend with its float64 reference, on random inputs.\n"
      "  gdn_parity --backend=cpu [--suite S] [--test NAME] [--seed N] [--list]\n"
      "Prints a row a case (relative norm error is what is held against the tolerance) and \"N passed, M failed\".\n"
      "Exit status: 0 all passed, 1 some failed, 2 no such suite, test or backend.");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1)
    return UsageError(absl::InvalidArgumentError(absl::StrCat("unexpected argument '", rest[1], "'")));

  const auto cases = SelectCases(AllCases(), absl::GetFlag(FLAGS_suite), absl::GetFlag(FLAGS_test));
  if (!cases.ok()) return UsageError(cases.status());
  if (absl::GetFlag(FLAGS_list)) {
    ListCases(*cases, std::cout);
    return 0;
  }
  const auto backend = MakeNamedBackend(absl::GetFlag(FLAGS_backend));
  if (!backend.ok()) return UsageError(backend.status());
  return RunCases(*cases, **backend, absl::GetFlag(FLAGS_seed), std::cout).failed == 0 ? 0 : kExitFailed;
}

}  // namespace
}  // namespace gdn::parity

int main(int argc, char** argv) { return gdn::parity::Main(argc, argv); }
