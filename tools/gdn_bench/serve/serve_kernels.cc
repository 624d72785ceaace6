#include "tools/gdn_bench/serve/serve_kernels.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/layer/gdn_layer.h"
#include "tools/gdn_bench/measure.h"

namespace gdn::bench {
namespace {

constexpr MeasureOptions kMeasure{.repeat = 7, .min_time_s = 0.03};
constexpr int kMostMergedRows = 512;       // gdn_server's --max-batch
constexpr int kMostMergedTokens = 65'536;  // bounds the case's memory

}  // namespace

absl::StatusOr<KernelTimes> KernelTimes::Make(const std::string& backend, const KernelTimesOptions& options) {
  if (backend == "null") return KernelTimes(nullptr);
  if (backend != "cpu" && backend != GpuBackendName()) {
    return absl::InvalidArgumentError(absl::StrCat("the server computes on '", backend,
                                                   "', and this gdn_bench has kernels for cpu and ",
                                                   std::string(GpuBackendName()), ": run the two of one build"));
  }
  GDN_ASSIGN_OR_RETURN(Machine machine, backend == "cpu" ? MakeCpuMachine(options.threads)
                                                         : MakeGpuMachine(options.gpu_device, "auto", "auto"));
  return KernelTimes(std::make_unique<Machine>(std::move(machine)));
}

absl::StatusOr<std::optional<KernelSeconds>> KernelTimes::Of(const Workload& load, int clients, bool segment) {
  if (load.call == CallKind::kStep) return std::nullopt;
  if (machine_ == nullptr) return KernelSeconds{};
  const bool decode = load.call == CallKind::kDecode;
  if (load.hidden != BenchLayerDims().hidden_size || (decode && load.tokens != 1)) return std::nullopt;
  KernelSeconds times;
  int merged = 1;  // calls in one launch
  if (decode) {
    merged = std::clamp(kMostMergedRows / load.sessions, 1, clients);
    GDN_ASSIGN_OR_RETURN(times.call_s, StepSeconds(LayerDecodeCase(load.sessions)));
    GDN_ASSIGN_OR_RETURN(times.merged_call_s, StepSeconds(LayerDecodeCase(merged * load.sessions)));
  } else {
    merged = std::clamp(kMostMergedTokens / load.tokens, 1, clients);
    GDN_ASSIGN_OR_RETURN(times.call_s, StepSeconds(LayerPrefillCase(1, load.tokens)));
    GDN_ASSIGN_OR_RETURN(times.merged_call_s, StepSeconds(LayerPrefillCase(merged, load.tokens)));
  }
  times.merged_call_s /= merged;
  if (segment) {
    GDN_ASSIGN_OR_RETURN(times.segment_s, StepSeconds(LayerPrefillCase(1, kPrefillSegmentTokens)));
  }
  return times;
}

absl::StatusOr<double> KernelTimes::StepSeconds(const KernelCase& kernel_case) {
  const auto known = seconds_.find(kernel_case.name);
  if (known != seconds_.end()) return known->second;
  std::fprintf(stderr, "kernels: %s\n", kernel_case.name.c_str());
  const absl::StatusOr<PreparedCase> prepared = kernel_case.prepare(machine_->setting());
  GDN_RETURN_IF_ERROR(WithPrefix(prepared.status(), kernel_case.name));
  const absl::StatusOr<Summary> step = MeasureStep(*prepared, *machine_, kMeasure);
  GDN_RETURN_IF_ERROR(WithPrefix(step.status(), kernel_case.name));
  return seconds_[kernel_case.name] = step->median;
}

}  // namespace gdn::bench
