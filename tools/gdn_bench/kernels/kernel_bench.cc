#include "tools/gdn_bench/kernels/kernel_bench.h"

#include <cstdio>
#include <cstdlib>
#include <regex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "kernels/cpu/processor.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/gdn_bench/kernels/kernel_case.h"
#include "tools/gdn_bench/kernels/machine.h"

namespace gdn::bench {
namespace {

absl::StatusOr<CaseList> CaseListOf(const std::string& backend) {
  if (backend == "cpu") return CaseList::kCpu;
  if (backend == GpuBackendName()) return CaseList::kGpu;
  return absl::InvalidArgumentError(
      StrCat("--backend='", backend, "' is not a backend of this build; use cpu or ", GpuBackendName()));
}

// The cases of the options' backend that match their filter.
absl::StatusOr<std::vector<KernelCase>> SelectCases(const KernelBenchOptions& options) {
  GDN_ASSIGN_OR_RETURN(const CaseList list, CaseListOf(options.backend));
  std::regex pattern;
  try {
    pattern = std::regex(options.filter);
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--filter='", options.filter, "' is not a regular expression: ", error.what()));
  }
  std::vector<KernelCase> selected;
  const bool narrow = options.state_dtype != DType::kF32;
  const bool exact = options.math == ProductMath::kExact;
  if (options.math == ProductMath::kHalf && list == CaseList::kCpu) {
    return absl::InvalidArgumentError(StrCat("--math=half is for a GPU; use --backend=", GpuBackendName()));
  }
  const auto select = [&](std::vector<KernelCase> cases) {
    for (KernelCase& c : cases) {
      if (narrow) c.name += "/state=bf16";
      if (!exact) absl::StrAppend(&c.name, "/math=", std::string(ProductMathName(options.math)));
      if (std::regex_search(c.name, pattern)) selected.push_back(std::move(c));
    }
  };
  if (exact) select(OperatorCases(list));
  if (exact && !narrow) select(ProjectionCases(list));  // they have no states
  select(LayerCases(list, options.math));
  return selected;
}

// The CPU's operators, limits and oneDNN (which reads its variable at its first use) with one instruction set.
absl::Status UseInstructions(const KernelBenchOptions& options) {
  if (options.simd.empty()) return UseSimdTarget("");
  if (options.backend != "cpu") return absl::InvalidArgumentError("--simd is for --backend=cpu");
  if (const absl::Status status = UseSimdTarget(options.simd); !status.ok()) return WithPrefix(status, "--simd");
  const char* widest = absl::StartsWith(options.simd, "avx3") ? "AVX512_CORE"
                       : options.simd == "avx2"               ? "AVX2"
                                                              : "SSE41";
  setenv("ONEDNN_MAX_CPU_ISA", widest, /*overwrite=*/1);
  return absl::OkStatus();
}

double LoadAverage() {
  double minute = 0;
  return getloadavg(&minute, 1) == 1 ? minute : 0;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> KernelCaseNames(const KernelBenchOptions& options) {
  GDN_ASSIGN_OR_RETURN(const std::vector<KernelCase> cases, SelectCases(options));
  std::vector<std::string> names;
  for (const KernelCase& c : cases) names.push_back(c.name);
  return names;
}

absl::StatusOr<KernelReport> RunKernelBench(const KernelBenchOptions& options) {
  if (options.measure.repeat < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--repeat must be at least 1, not ", options.measure.repeat));
  }
  if (!(options.measure.min_time_s >= 0 && options.measure.min_time_s <= 60)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min_time must be 0 to 60 seconds, not ", options.measure.min_time_s));
  }
  GDN_ASSIGN_OR_RETURN(const std::vector<KernelCase> cases, SelectCases(options));
  if (cases.empty()) {
    return absl::NotFoundError(absl::StrCat("no case matches --filter='", options.filter, "'; --list shows them all"));
  }
  GDN_RETURN_IF_ERROR(UseInstructions(options));
  const double load_average = LoadAverage();
  GDN_ASSIGN_OR_RETURN(Machine machine,
                       options.backend != "cpu"
                           ? MakeGpuMachine(options.gpu_device, options.gpu_graphs, options.matrix_units, options.math)
                           : MakeCpuMachine(options.threads, options.math));
  KernelReport report{.backend = machine.backend->info(),
                      .device = machine.device,
                      .last_level_cache_bytes = machine.last_level_cache_bytes,
                      .load_average = load_average,
                      .options = options,
                      .cases = {}};
  report.backend.numerics_id = NumericsIdFor(report.backend.numerics_id, options.state_dtype);
  for (size_t i = 0; i < cases.size(); ++i) {
    const KernelCase& c = cases[i];
    std::fprintf(stderr, "[%zu/%zu] %s\n", i + 1, cases.size(), c.name.c_str());
    CaseSetting setting = machine.setting();
    setting.state_dtype = options.state_dtype;
    absl::StatusOr<PreparedCase> prepared = c.prepare(setting);
    if (!prepared.ok()) return WithPrefix(prepared.status(), c.name);
    absl::StatusOr<CaseResult> result = MeasureCase(c.name, *prepared, machine, options.measure);
    if (!result.ok()) return WithPrefix(result.status(), c.name);
    report.cases.push_back(*std::move(result));
  }
  return report;
}

}  // namespace gdn::bench
