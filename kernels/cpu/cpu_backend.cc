#include "kernels/cpu/cpu_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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
  absl::Status Projection(const ProjectionParams& params) override {
    if (preparing_) return Need(ScratchFloats(params, pool_.threads()));
    const ScratchArena::InUse in_use(scratch_);
    return ProjectionCpu(params, pool_);
  }
  absl::Status QkvzSplit(const QkvzSplitParams& params) override {
    return preparing_ ? absl::OkStatus() : QkvzSplitCpu(params, pool_);
  }
  absl::Status CausalConv1d(const CausalConv1dParams& params) override {
    return preparing_ ? absl::OkStatus() : CausalConv1dCpu(params, pool_);
  }
  absl::Status Gating(const GatingParams& params) override {
    return preparing_ ? absl::OkStatus() : GatingCpu(params, pool_);
  }
  absl::Status QkL2Norm(const QkL2NormParams& params) override {
    return preparing_ ? absl::OkStatus() : QkL2NormCpu(params, pool_);
  }
  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override {
    return preparing_ ? absl::OkStatus() : DeltaRuleChunkCpu(params, pool_);
  }
  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override {
    return preparing_ ? absl::OkStatus() : DeltaRuleScanCpu(params, pool_);
  }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    if (preparing_) return Need(ScratchFloats(params, pool_.threads()));
    const ScratchArena::InUse in_use(scratch_);
    return DeltaRuleDecodeCpu(params, pool_);
  }
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    if (preparing_) return Need(ScratchFloats(params, pool_.threads()));
    const ScratchArena::InUse in_use(scratch_);
    return MaterializeStateCpu(params, pool_);
  }
  absl::Status GatedRmsNorm(const GatedRmsNormParams& params) override {
    return preparing_ ? absl::OkStatus() : GatedRmsNormCpu(params, pool_);
  }
  absl::Status Convert(const ConvertParams& params) override {
    return preparing_ ? absl::OkStatus() : ConvertCpu(params);
  }

 private:
  // Constant after construction.
  BackendInfo info_;

  // Of the operator that is prepared: one runs at a time.
  absl::Status Need(int64_t floats) {
    needed_floats_ = std::max(needed_floats_, floats);
    return absl::OkStatus();
  }

  // Own synchronisation; one thread at a time issues operators.
  ThreadPool pool_;

  // Of the thread that issues operators.
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
