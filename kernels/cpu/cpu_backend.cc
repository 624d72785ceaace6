#include "kernels/cpu/cpu_backend.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/common/contract.h"
#include "kernels/common/reserved_memory.h"
#include "kernels/cpu/processor.h"
#include "kernels/projection/projection_paths.h"

namespace gdn {
namespace {

constexpr int kMaxThreads = 1024;

// Raised whenever a CPU operator's bits change.
constexpr int kKernelVersion = 4;

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads) : pool_(threads, "gdn-cpu") {
    info_.name = "cpu";
    info_.device = ProcessorName();
    info_.numerics_id = absl::StrCat("cpu-", SimdTargetName(), "-", SimdToolkitName(), "-", SequenceGemmId(), "-k",
                                     kKernelVersion, "-L", kLogCapacity, "-C", kChunkTokens);
    info_.threads = threads;
    info_.memory_bytes = HostMemoryBytes();
    info_.unified_memory = true;
    info_.weight_formats = kAllWeights;
    info_.lazy_memory = true;
    info_.stable_gemm_rows = SequenceGemmStableRows();
  }

  const BackendInfo& info() const override { return info_; }

  // Each operator validates its params before it touches anything.
  absl::Status Projection(const ProjectionParams& params) override { return ProjectionCpu(params, pool_); }
  absl::Status QkvzSplit(const QkvzSplitParams& params) override { return QkvzSplitCpu(params, pool_); }
  absl::Status CausalConv1d(const CausalConv1dParams& params) override { return CausalConv1dCpu(params, pool_); }
  absl::Status Gating(const GatingParams& params) override { return GatingCpu(params, pool_); }
  absl::Status QkL2Norm(const QkL2NormParams& params) override { return QkL2NormCpu(params, pool_); }
  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override { return DeltaRuleChunkCpu(params, pool_); }
  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override { return DeltaRuleScanCpu(params, pool_); }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    return DeltaRuleDecodeCpu(params, pool_);
  }
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    return MaterializeStateCpu(params, pool_);
  }
  absl::Status GatedRmsNorm(const GatedRmsNormParams& params) override { return GatedRmsNormCpu(params, pool_); }

 private:
  // Constant after construction.
  BackendInfo info_;

  // Own synchronisation; one thread at a time issues operators.
  ThreadPool pool_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options) {
  GDN_RETURN_IF_ERROR(RequireRange("CPU backend", "threads", options.threads, 0, kMaxThreads));
  const int threads = options.threads > 0 ? options.threads : AvailableProcessors();
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace gdn
