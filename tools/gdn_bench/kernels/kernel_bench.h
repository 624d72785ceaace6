// `gdn_bench kernel`: measures operators, projections and whole layers relative to the machine's limits.
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
  std::string backend = "cpu";        // "cpu", or the backend of the build's GPU sources: "gpu" or "host"
  int threads = 0;                    // number of CPU threads; 0: one for each processor that this process may run on
  std::string simd;                   // the CPU's SIMD target, as for UseSimdTarget(); empty: the best one
  int gpu_device = 0;                 // index among the devices that HIP_VISIBLE_DEVICES leaves
  std::string gpu_graphs = "auto";    // the GPU replays repeated decode steps as graphs: "auto", "on" or "off"
  std::string matrix_units = "auto";  // whether products run on the GPU's, if it has any: "auto" or "off"
  std::string filter;                 // regular expression found anywhere in a case's name; empty: all
  // How layers multiply. Not kExact: only cases of layers, with "/math=" and its name. kHalf is for GPUs.
  ProductMath math = ProductMath::kExact;
  DType state_dtype = DType::kF32;  // dtype of the states' bases; kBF16: only cases with states, named with /state=bf16
  MeasureOptions measure;
};

struct KernelReport {
  BackendInfo backend;
  std::optional<gpu::DeviceInfo> device;  // nullopt for a CPU
  int64_t last_level_cache_bytes = 0;
  double load_average = 0;  // of the system, over the minute before; well above 0 if other programs were running
  KernelBenchOptions options;
  std::vector<CaseResult> cases;
};

// Returns the names of the backend's cases that match the filter, in order. INVALID_ARGUMENT for an unknown backend, or
// a filter that is not a regular expression.
absl::StatusOr<std::vector<std::string>> KernelCaseNames(const KernelBenchOptions& options);

// Measures the cases that match the filter, with progress on stderr. INVALID_ARGUMENT for a bad option. NOT_FOUND if no
// case matches. Errors of the backend, with the case's name. Sets the SIMD target of the whole process to `simd`.
absl::StatusOr<KernelReport> RunKernelBench(const KernelBenchOptions& options);

}  // namespace gdn::bench
