#include "kernels/backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/common/reserved_memory.h"

namespace gdn {

namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

absl::Status Move(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointers("copy", {{"destination", to}, {"source", from}}));
  std::memmove(to, from, bytes);
  return absl::OkStatus();
}

}  // namespace

std::vector<float> BackendInfo::RowScalesFor(const WeightMatrix& weight, bool meets_calls) const {
  const bool multiplied = takes_halves && (meets_calls || math == ProductMath::kHalf) && IsPlain(weight.format);
  return multiplied ? RowScalesOf(weight, math) : std::vector<float>();
}

absl::StatusOr<void*> Backend::Allocate(size_t bytes) { return HostAllocate(bytes); }
void Backend::Free(void* data, size_t bytes) { HostFree(data, bytes); }
absl::Status Backend::CopyIn(void* device, const void* host, size_t bytes) { return Move(device, host, bytes); }
absl::Status Backend::CopyOut(void* host, const void* device, size_t bytes) { return Move(host, device, bytes); }
absl::Status Backend::Copy(void* to, const void* from, size_t bytes) { return Move(to, from, bytes); }
absl::Status Backend::CopyPieces(absl::Span<const CopyPiece> pieces) {
  GDN_RETURN_IF_ERROR(ValidateCopyPieces(pieces));
  for (const CopyPiece& piece : pieces) {
    GDN_RETURN_IF_ERROR(Copy(piece.to, piece.from, static_cast<size_t>(piece.floats) * sizeof(float)));
  }
  return absl::OkStatus();
}
absl::Status Backend::TransferOut(void* host, const void* device, size_t bytes) { return Move(host, device, bytes); }
absl::Status Backend::TransferIn(void* device, const void* host, size_t bytes) { return Move(device, host, bytes); }

absl::Status Backend::StageIn(const StageInParams& params) { return Move(params.device, params.host, params.bytes); }
absl::Status Backend::StagePiece(void* device, const void* host, size_t bytes) { return Move(device, host, bytes); }
absl::Status Backend::StageOut(void* host, const void* device, size_t bytes) { return Move(host, device, bytes); }

absl::StatusOr<void*> Backend::AllocateHost(size_t bytes) {
  // A copy into fresh memory spends most of its time on page faults; large pages make them few.
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  void* data = nullptr;
  if (posix_memalign(&data, alignment, bytes) != 0) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     absl::StrCat("the host has no ", bytes, " bytes for a copy of a state"));
  }
  if (alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // a hint
  return data;
}

void Backend::FreeHost(void* data, size_t /*bytes*/) { std::free(data); }

int64_t Backend::WeightBytes(const WeightMatrix& weight) const {
  return weight.rows * RowBytes(weight.format, weight.cols);
}
absl::Status Backend::CopyWeightsIn(void* device, const WeightMatrix& host) {
  return CopyIn(device, host.data, static_cast<size_t>(Backend::WeightBytes(host)));
}

absl::Status Backend::ZeroSlot(const StatePoolView& pool, int32_t slot) {
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  std::fill_n(pool.slot(slot), pool.layout.slot_floats(), 0.0f);
  return absl::OkStatus();
}

absl::Status Backend::Projections(absl::Span<const ProjectionParams> params) {
  for (const ProjectionParams& projection : params) GDN_RETURN_IF_ERROR(Projection(projection));
  return absl::OkStatus();
}

absl::Status Backend::MixedDecode(const MixedDecodeParams& params) {
  GDN_RETURN_IF_ERROR(ValidateMixedDecode(params));
  GDN_RETURN_IF_ERROR(MixerInput(params.input));
  GDN_RETURN_IF_ERROR(DeltaRuleDecode(params.decode));
  return GatedRmsNorm(params.norm);
}

absl::Status Backend::MixerInput(const MixerInputParams& params) {
  GDN_RETURN_IF_ERROR(ValidateMixerInput(params));
  const LayerDims& dims = params.pool.layout.dims();
  const int64_t tokens = params.batch.tokens();
  const float* mixed_qkv = params.mixed_qkv;
  const float* b = params.b;
  const float* a = params.a;
  if (params.qkvz != nullptr) {
    float* split = params.split_scratch;
    QkvzSplitParams to{.layout = params.layout,
                       .dims = dims,
                       .rows = tokens,
                       .qkvz = params.qkvz,
                       .ba = params.ba,
                       .mixed_qkv = split,
                       .z = params.z,
                       .b = split + tokens * dims.conv_channels(),
                       .a = split + tokens * (dims.conv_channels() + dims.value_heads)};
    GDN_RETURN_IF_ERROR(QkvzSplit(to));
    mixed_qkv = to.mixed_qkv;
    b = to.b;
    a = to.a;
  }
  GDN_RETURN_IF_ERROR(CausalConv1d({.pool = params.pool,
                                    .batch = params.batch,
                                    .token_counts = params.token_counts,
                                    .x = mixed_qkv,
                                    .weight = params.conv_weight,
                                    .y = params.convolved}));
  GDN_RETURN_IF_ERROR(Gating({.convention = params.a_log_convention,
                              .gate = params.decay_gate,
                              .lower_bound = params.decay_lower_bound,
                              .beta_scale = params.beta_scale,
                              .value_heads = dims.value_heads,
                              .decay_dim = dims.decay_dim(),
                              .rows = tokens,
                              .a = a,
                              .b = b,
                              .a_log = params.a_log,
                              .dt_bias = params.dt_bias,
                              .g = params.g,
                              .beta = params.beta}));
  return QkL2Norm({.key_heads = dims.key_heads,
                   .key_dim = dims.key_dim,
                   .rows = tokens,
                   .scale = params.scale,
                   .q = params.convolved,
                   .k = params.convolved + dims.key_features(),
                   .in_stride = dims.conv_channels(),
                   .q_out = params.q,
                   .k_out = params.k});
}

}  // namespace gdn
