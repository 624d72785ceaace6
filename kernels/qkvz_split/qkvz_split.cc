#include "kernels/qkvz_split/qkvz_split.h"

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

// Where element `e` of head `head` of each part lies within a row of qkvz. One function a part, index arithmetic only.
struct Indexer {
  const LayerDims& dims;
  bool interleaved;

  int64_t group_features() const { return 2 * int64_t{dims.key_dim} + 2 * int64_t{dims.group()} * dims.value_dim; }

  int64_t Q(int32_t head, int32_t e) const {
    return interleaved ? head * group_features() + e : int64_t{head} * dims.key_dim + e;
  }
  int64_t K(int32_t head, int32_t e) const {
    return interleaved ? head * group_features() + dims.key_dim + e
                       : dims.key_features() + int64_t{head} * dims.key_dim + e;
  }
  int64_t V(int32_t value_head, int32_t e) const {
    if (!interleaved) return 2 * dims.key_features() + int64_t{value_head} * dims.value_dim + e;
    const int32_t key_head = value_head / dims.group();
    const int32_t member = value_head % dims.group();
    return key_head * group_features() + 2 * int64_t{dims.key_dim} + int64_t{member} * dims.value_dim + e;
  }
  int64_t Z(int32_t value_head, int32_t e) const {
    return V(value_head, e) + (interleaved ? int64_t{dims.group()} * dims.value_dim : dims.value_features());
  }
  int64_t B(int32_t value_head) const {
    if (!interleaved) return value_head;
    return int64_t{value_head / dims.group()} * 2 * dims.group() + value_head % dims.group();
  }
  int64_t A(int32_t value_head) const { return B(value_head) + (interleaved ? dims.group() : dims.value_heads); }
};

}  // namespace

absl::Status ValidateQkvzSplit(const QkvzSplitParams& params) {
  constexpr char kOp[] = "QkvzSplit";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "rows", params.rows, 0, kMaxOperatorRows));
  GDN_RETURN_IF_ERROR(ValidateLayerDims(params.dims));
  if (params.dims.decays_by_channel()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     "QkvzSplit: dims decay by channel; their projections lie apart and need no split",
                     {{"field", "dims.decay"}});
  }
  if (params.rows == 0) return absl::OkStatus();
  return RequirePointers(kOp, {{"qkvz", params.qkvz},
                               {"ba", params.ba},
                               {"mixed_qkv", params.mixed_qkv},
                               {"z", params.z},
                               {"b", params.b},
                               {"a", params.a}});
}

void QkvzSplitReference(const QkvzSplitParams& params) {
  const LayerDims& dims = params.dims;
  const Indexer at{dims, params.layout == ProjectionLayout::kInterleaved};
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* qkvz = params.qkvz + row * (dims.conv_channels() + dims.value_features());
    const float* ba = params.ba + row * 2 * dims.value_heads;
    float* mixed = params.mixed_qkv + row * dims.conv_channels();
    for (int32_t h = 0; h < dims.key_heads; ++h) {
      for (int32_t e = 0; e < dims.key_dim; ++e) *mixed++ = qkvz[at.Q(h, e)];
    }
    for (int32_t h = 0; h < dims.key_heads; ++h) {
      for (int32_t e = 0; e < dims.key_dim; ++e) *mixed++ = qkvz[at.K(h, e)];
    }
    for (int32_t h = 0; h < dims.value_heads; ++h) {
      for (int32_t e = 0; e < dims.value_dim; ++e) {
        *mixed++ = qkvz[at.V(h, e)];
        params.z[row * dims.value_features() + int64_t{h} * dims.value_dim + e] = qkvz[at.Z(h, e)];
      }
      params.b[row * dims.value_heads + h] = ba[at.B(h)];
      params.a[row * dims.value_heads + h] = ba[at.A(h)];
    }
  }
}

}  // namespace gdn
