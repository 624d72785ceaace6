#include "kernels/null/null_backend.h"

#include <algorithm>
#include <cstring>

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
  for (const auto& [offset, features] : layout.log_sections()) {
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

// Writes what may leave the process: memory that is used again holds other callers' data. Outputs become zeros.
// Outputs that stay in the layer need nothing. Nor does the norm's: it is where the delta rule's was,
// or stays in the layer.
template <typename Params>
void Answer(const Params& /*params*/) {}
void Answer(const ProjectionParams& params) {
  const size_t bytes = static_cast<size_t>(params.weight.rows) * DTypeSize(params.y.dtype);
  for (int64_t row = 0; row < params.rows; ++row) std::memset(params.y.From(row * params.y_stride).data, 0, bytes);
}
void Answer(const DeltaRuleParams& params) {
  const int64_t tokens = params.batch.sequences == 0 ? 0 : params.batch.tokens();
  Zero(params.output, tokens * params.pool.layout.dims().value_features());
}
void Answer(const DeltaRuleDecodeParams& params) {
  for (int32_t i = 0; i < params.rule.batch.sequences; ++i) {
    if (params.rule.batch.slots[i] < 0) continue;  // padding
    ZeroNewLogEntries(params, i);
    CopyFoldedBase(params, i);
  }
  AdvanceLogs(params);
  Answer(params.rule);
}
// The state becomes what it was, without its log.
void Answer(const MaterializeStateParams& params) {
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
}

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

#define GDN_CHECK_OPERATOR(Name, Params, Check)      \
  absl::Status Name(const Params& params) override { \
    GDN_RETURN_IF_ERROR(Check(params));              \
    Answer(params);                                  \
    return absl::OkStatus();                         \
  }
  GDN_OPERATORS(GDN_CHECK_OPERATOR)
#undef GDN_CHECK_OPERATOR
  // Projections of the same rows are a layer's inputs, which stay in the layer.
  absl::Status Projections(absl::Span<const ProjectionParams> params) override {
    for (const ProjectionParams& one : params) GDN_RETURN_IF_ERROR(ValidateProjection(one));
    return absl::OkStatus();
  }

 private:
  BackendInfo info_;  // constant after construction
};

}  // namespace

std::unique_ptr<Backend> MakeNullBackend() { return std::make_unique<NullBackend>(); }

}  // namespace gdn
