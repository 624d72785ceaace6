#include "kernels/cpu/cpu_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/processors.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/common/contract.h"
#include "kernels/common/reserved_memory.h"
#include "kernels/common/scratch_needs.h"
#include "kernels/common/worker_scratch.h"
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

  absl::Status Prepare(absl::FunctionRef<absl::Status()> issue) override {
    needed_floats_ = 0;
    preparing_ = true;
    const absl::Status issued = issue();
    preparing_ = false;
    GDN_RETURN_IF_ERROR(issued);
    return scratch_.Reserve(needed_floats_);
  }

  absl::Status CopyIn(void* device, const void* host, size_t bytes) override {
    return preparing_ ? absl::OkStatus() : Backend::CopyIn(device, host, bytes);
  }
  absl::Status Copy(void* to, const void* from, size_t bytes) override {
    return preparing_ ? absl::OkStatus() : Backend::Copy(to, from, bytes);
  }
  absl::Status ZeroSlot(const StatePoolView& pool, int32_t slot) override {
    return preparing_ ? absl::OkStatus() : Backend::ZeroSlot(pool, slot);
  }

  // Each operator validates its params before it touches anything.
  absl::Status Projection(const ProjectionParams& params) override { return RunWithScratch(ProjectionCpu, params); }
  absl::Status QkvzSplit(const QkvzSplitParams& params) override { return Run(QkvzSplitCpu, params); }
  absl::Status CausalConv1d(const CausalConv1dParams& params) override { return Run(CausalConv1dCpu, params); }
  absl::Status Gating(const GatingParams& params) override { return Run(GatingCpu, params); }
  absl::Status QkL2Norm(const QkL2NormParams& params) override { return Run(QkL2NormCpu, params); }
  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override { return Run(DeltaRuleChunkCpu, params); }
  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override { return Run(DeltaRuleScanCpu, params); }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    return RunWithScratch(DeltaRuleDecodeCpu, params);
  }
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    return RunWithScratch(MaterializeStateCpu, params);
  }
  absl::Status GatedRmsNorm(const GatedRmsNormParams& params) override { return Run(GatedRmsNormCpu, params); }
  absl::Status Convert(const ConvertParams& params) override {
    return preparing_ ? absl::OkStatus() : ConvertCpu(params);
  }

 private:
  template <typename Params>
  absl::Status Run(absl::Status (*run)(const Params&, ThreadPool&), const Params& params) {
    return preparing_ ? absl::OkStatus() : run(params, pool_);
  }
  // Runs an operator that takes scratch memory of `scratch_`.
  template <typename Params>
  absl::Status RunWithScratch(absl::Status (*run)(const Params&, ThreadPool&), const Params& params) {
    if (preparing_) {
      needed_floats_ = std::max(needed_floats_, ScratchFloats(params, pool_.threads()));  // one operator runs at a time
      return absl::OkStatus();
    }
    const ScratchArena::InUse in_use(scratch_);
    return run(params, pool_);
  }

  // Constant after construction.
  BackendInfo info_;

  // Own synchronisation; one thread at a time issues operators.
  ThreadPool pool_;

  // Used by the thread that issues operators.
  ScratchArena scratch_;  // as large as any operators have needed that were prepared
  bool preparing_ = false;
  int64_t needed_floats_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options) {
  GDN_RETURN_IF_ERROR(RequireRange("CPU backend", "threads", options.threads, 0, kMaxThreads));
  const int threads = options.threads > 0 ? options.threads : AvailableProcessors();
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace gdn
