// `gdn_bench kernel`: operators, projections and whole layers against the machine's limits.
//
// Thread safety: one thread.
//
//   GDN_ASSIGN_OR_RETURN(KernelReport report, RunKernelBench({.backend = "cpu", .filter = "decode"}));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/gpu/runtime.h"
#include "tools/gdn_bench/measure.h"

namespace gdn::bench {

struct KernelBenchOptions {
  std::string backend = "cpu";      // or what the GPU sources of the build run on: "gpu", "host"
  int threads = 0;                  // of the CPU; 0: one for each processor this process may run on
  std::string simd;                 // of the CPU, as UseSimdTarget() takes it; empty: the best it has
  int gpu_device = 0;               // among those that HIP_VISIBLE_DEVICES leaves
  std::string gpu_graphs = "auto";  // whether the GPU replays decode steps that come again: "auto", "on" or "off"
  std::string filter;               // regular expression found anywhere in a case's name; empty: all
  DType state_dtype = DType::kF32;  // of the states' bases; kBF16: rows with states alone, named with /state=bf16
  MeasureOptions measure;
};

struct KernelReport {
  BackendInfo backend;
  std::optional<gpu::DeviceInfo> device;  // of a GPU
  int64_t last_level_cache_bytes = 0;
  double load_average = 0;  // of the system over the minute before; well above 0, others are running too
  KernelBenchOptions options;
  std::vector<CaseResult> cases;
};

// Names of the backend's cases that match the filter, in order. INVALID_ARGUMENT for an unknown backend, and for a
// filter that is not a regular expression.
absl::StatusOr<std::vector<std::string>> KernelCaseNames(const KernelBenchOptions& options);

// INVALID_ARGUMENT for a bad option, NOT_FOUND where no case matches; errors of the backend with the case's name.
absl::StatusOr<KernelReport> RunKernelBench(const KernelBenchOptions& options);

}  // namespace gdn::bench
