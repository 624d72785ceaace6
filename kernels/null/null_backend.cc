#include "kernels/null/null_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/dtype.h"
#include "base/status_macros.h"
#include "kernels/common/reserved_memory.h"

namespace gdn {
namespace {

void Zero(float* values, int64_t count) { std::fill_n(values, count, 0.0f); }

// The entries of the tokens that a decode appends to the sequence's log, which count from then on.
void ZeroNewLogEntries(const DeltaRuleDecodeParams& params, int32_t sequence) {
  const StatePoolView& pool = params.rule.pool;
  const StateLayout& layout = pool.layout;
  const PackedBatch& batch = params.rule.batch;
  const int64_t first = params.log_lengths[sequence];
  const int64_t tokens = batch.cu_seqlens[sequence + 1] - batch.cu_seqlens[sequence];
  const int64_t count = std::min<int64_t>(tokens, layout.log_rows() - first);
  float* const slot = pool.slot(batch.slots[sequence]);
  const LayerDims& dims = layout.dims();
  for (const auto& [offset, features] : {std::pair{layout.log_k_offset(), dims.key_features()},
                                         {layout.log_u_offset(), dims.value_features()},
                                         {layout.log_g_offset(), dims.decay_features()}}) {
    Zero(slot + offset + first * features, count * features);
  }
}

// If the decode folds, the base that it read becomes that of the slot.
void CopyFoldedBase(const DeltaRuleDecodeParams& params, int32_t sequence) {
  if (params.base_slots == nullptr || params.draft) return;
  const StatePoolView& pool = params.rule.pool;
  const PackedBatch& batch = params.rule.batch;
  const int64_t tokens = batch.cu_seqlens[sequence + 1] - batch.cu_seqlens[sequence];
  const int32_t from = params.base_slots[sequence];
  const int32_t to = batch.slots[sequence];
  if (from == to || params.log_lengths[sequence] + tokens < kLogCapacity) return;
  std::memcpy(pool.slot(to), pool.slot(from), static_cast<size_t>(pool.layout.base_bytes()));
}

// Every operator checks its params as a real one does, so that the service around it takes the same way. Outputs that
// leave the process are written all the same, with zeros: memory that is used again holds other callers' data.
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

  absl::Status Projection(const ProjectionParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateProjection(params));
    const size_t bytes = static_cast<size_t>(params.weight.rows) * DTypeSize(params.y.dtype);
    for (int64_t row = 0; row < params.rows; ++row) std::memset(params.y.From(row * params.y_stride).data, 0, bytes);
    return absl::OkStatus();
  }
  absl::Status QkvzSplit(const QkvzSplitParams& params) override { return ValidateQkvzSplit(params); }
  absl::Status CausalConv1d(const CausalConv1dParams& params) override { return ValidateCausalConv1d(params); }
  absl::Status Gating(const GatingParams& params) override { return ValidateGating(params); }
  absl::Status QkL2Norm(const QkL2NormParams& params) override { return ValidateQkL2Norm(params); }
  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override { return DeltaRule(params); }
  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override { return DeltaRule(params); }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateDeltaRuleDecode(params));
    for (int32_t i = 0; i < params.rule.batch.sequences; ++i) {
      if (params.rule.batch.slots[i] < 0) continue;  // padding
      ZeroNewLogEntries(params, i);
      CopyFoldedBase(params, i);
    }
    AdvanceLogs(params);
    ZeroOutput(params.rule);
    return absl::OkStatus();
  }
  // The state as it was, without its log.
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateMaterializeState(params));
    const StateLayout& layout = params.pool.layout;
    for (int32_t i = 0; i < params.count; ++i) {
      float* const to = params.pool.slot(params.dst[i]);
      if (params.src[i] < 0) {
        Zero(to, layout.slot_floats());
        continue;
      }
      const float* const base = params.pool.slot(params.src_bases == nullptr ? params.src[i] : params.src_bases[i]);
      if (base != to) std::memcpy(to, base, static_cast<size_t>(layout.base_bytes()));
      const int64_t tail = layout.log_k_offset();
      if (params.src[i] != params.dst[i]) {
        std::copy_n(params.pool.slot(params.src[i]) + tail, layout.slot_floats() - tail, to + tail);
      }
    }
    return absl::OkStatus();
  }
  absl::Status GatedRmsNorm(const GatedRmsNormParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateGatedRmsNorm(params));
    Zero(params.y, params.rows * params.value_dim);
    return absl::OkStatus();
  }

 private:
  static void ZeroOutput(const DeltaRuleParams& params) {
    const int64_t tokens = params.batch.sequences == 0 ? 0 : params.batch.cu_seqlens[params.batch.sequences];
    Zero(params.output, tokens * params.pool.layout.dims().value_features());
  }
  static absl::Status DeltaRule(const DeltaRuleParams& params) {
    GDN_RETURN_IF_ERROR(ValidateDeltaRule(params));
    ZeroOutput(params);
    return absl::OkStatus();
  }

  BackendInfo info_;  // constant after construction
};

}  // namespace

std::unique_ptr<Backend> MakeNullBackend() { return std::make_unique<NullBackend>(); }

}  // namespace gdn
