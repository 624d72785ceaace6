// `gdn_bench kernel`: operators, projections and whole layers against the machine's limits.
//
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(KernelReport report, RunKernelBench({.backend = "cpu", .filter = "decode"}));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "tools/gdn_bench/measure.h"

namespace gdn::bench {

struct KernelBenchOptions {
  std::string backend = "cpu";
  int threads = 0;     // 0: one for each processor this process may run on
  std::string filter;  // regular expression found anywhere in a case's name; empty: all
  MeasureOptions measure;
};

struct KernelReport {
  BackendInfo backend;
  int64_t last_level_cache_bytes = 0;
  double load_average = 0;  // of the system over the minute before; well above 0, others are running too
  KernelBenchOptions options;
  std::vector<CaseResult> cases;
};

// Names of all cases that match, in order. INVALID_ARGUMENT for a filter that is not a regular expression.
absl::StatusOr<std::vector<std::string>> KernelCaseNames(const std::string& filter);

// INVALID_ARGUMENT for a bad option, NOT_FOUND where no case matches; errors of the backend with the case's name.
absl::StatusOr<KernelReport> RunKernelBench(const KernelBenchOptions& options);

}  // namespace gdn::bench
