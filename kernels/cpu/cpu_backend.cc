#include "kernels/cpu/cpu_backend.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/threads/processors.h"
#include "base/threads/thread_pool.h"
#include "kernels/common/contract.h"
#include "kernels/common/reserved_memory.h"
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
  CpuBackend(int threads, ProductMath math) : pool_(threads, "gdn-cpu") {
    info_.name = "cpu";
    info_.device = ProcessorName();
    info_.numerics_id =
        absl::StrCat("cpu-", SimdTargetName(), "-", SimdToolkitName(), "-", SequenceGemmId(), "-k", kKernelVersion,
                     "-L", kLogCapacity, "-C", kChunkTokens, std::string(NumericsSuffixOf(math)));
    info_.math = math;
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

#define GDN_RUN_OPERATOR(Name, Params, Check) \
  absl::Status Name(const Params& params) override { return Run(params, Check, Name##Cpu); }
  GDN_OPERATORS(GDN_RUN_OPERATOR)
#undef GDN_RUN_OPERATOR
  absl::Status Convert(const ConvertParams& params) override {
    return preparing_ ? absl::OkStatus() : ConvertCpu(params);
  }

 private:
  // An operator whose scratch is to be reserved has a function ScratchFloats(params, threads) beside its params.
  template <typename Params>
  absl::Status Run(const Params& params, absl::Status (*check)(const Params&),
                   absl::Status (*run)(const Params&, ThreadPool&)) {
    if (preparing_) {
      if constexpr (requires { ScratchFloats(params, 1); }) {  // the largest need: one operator runs at a time
        needed_floats_ = std::max(needed_floats_, ScratchFloats(params, pool_.threads()));
      }
      return absl::OkStatus();
    }
    GDN_RETURN_IF_ERROR(check(params));
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
  if (options.math == ProductMath::kHalf) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDeviceUnsupported,
                     "a CPU has no products of fp16 numbers that would be faster than exact ones; use --math=exact, or "
                     "a GPU",
                     {{"device", ProcessorName()}});
  }
  const int threads = options.threads > 0 ? options.threads : AvailableProcessors();
  return std::make_unique<CpuBackend>(threads, options.math);
}

}  // namespace gdn
