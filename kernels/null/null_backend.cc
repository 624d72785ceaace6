#include "kernels/null/null_backend.h"

#include "base/status_macros.h"
#include "kernels/common/reserved_memory.h"

namespace gdn {
namespace {

// Every operator checks its params as a real one does, so that the service around it takes the same way.
class NullBackend final : public Backend {
 public:
  NullBackend() {
    info_.name = "null";
    info_.device = "none (computes nothing)";
    info_.numerics_id = "null";
    info_.memory_bytes = HostMemoryBytes();
    info_.unified_memory = true;
    info_.weight_formats = kAllWeights;
    info_.lazy_memory = true;
  }

  const BackendInfo& info() const override { return info_; }

  absl::Status Projection(const ProjectionParams& params) override { return ValidateProjection(params); }
  absl::Status QkvzSplit(const QkvzSplitParams& params) override { return ValidateQkvzSplit(params); }
  absl::Status CausalConv1d(const CausalConv1dParams& params) override { return ValidateCausalConv1d(params); }
  absl::Status Gating(const GatingParams& params) override { return ValidateGating(params); }
  absl::Status QkL2Norm(const QkL2NormParams& params) override { return ValidateQkL2Norm(params); }
  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override { return ValidateDeltaRule(params); }
  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override { return ValidateDeltaRule(params); }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateDeltaRuleDecode(params));
    // The one thing a caller counts on.
    AdvanceLogs(params);
    return absl::OkStatus();
  }
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    return ValidateMaterializeState(params);
  }
  absl::Status GatedRmsNorm(const GatedRmsNormParams& params) override { return ValidateGatedRmsNorm(params); }

 private:
  BackendInfo info_;  // constant after construction
};

}  // namespace

std::unique_ptr<Backend> MakeNullBackend() { return std::make_unique<NullBackend>(); }

}  // namespace gdn
