#include "kernels/backend.h"

#include "base/status_macros.h"

namespace gdn {

absl::Status Backend::Projections(absl::Span<const ProjectionParams> params) {
  for (const ProjectionParams& projection : params) GDN_RETURN_IF_ERROR(Projection(projection));
  return absl::OkStatus();
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
                              .value_heads = dims.value_heads,
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

absl::StatusOr<DeviceBuffer> DeviceBuffer::Make(Backend& backend, size_t bytes) {
  DeviceBuffer buffer;
  GDN_ASSIGN_OR_RETURN(buffer.data_, backend.Allocate(bytes));
  buffer.backend_ = &backend;
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) backend_->Free(data_, bytes_);
}

}  // namespace gdn
