// Device code: positions of the elements of q, k, v, z, b and a in a row of the in-projections' outputs, for both
// layouts of qkvz_split.h.
//
// Thread safety: plain values.
//
//   const QkvzIndex at = MakeQkvzIndex(dims, layout);
//   mixed_qkv[c] = qkvz[at.Mixed(c)];
#pragma once

#include <cstdint>

#include "base/layer_dims.h"
#include "kernels/gpu/device.h"
#include "kernels/qkvz_split/qkvz_split.h"

namespace gdn::gpu {

struct QkvzIndex {
  bool interleaved;
  int32_t key_heads;    // H
  int32_t value_heads;  // HV
  int32_t group;        // r = HV / H
  int32_t key_dim;      // K
  int32_t value_dim;    // V

  // H K, HV V and C. Computed where they are used, not stored, because kernel arguments take scalar registers from the
  // kernel's start.
  __device__ __forceinline__ int32_t KeyFeatures() const { return key_heads * key_dim; }
  __device__ __forceinline__ int32_t ValueFeatures() const { return value_heads * value_dim; }
  __device__ __forceinline__ int32_t Channels() const { return 2 * KeyFeatures() + ValueFeatures(); }
  // Number of elements of a key head's group (q, k, v, z) in a row of qkvz in the interleaved layout.
  __device__ __forceinline__ int32_t GroupFeatures() const { return 2 * (key_dim + group * value_dim); }

  // Returns the position in a row of qkvz of channel `channel`, 0 .. C - 1, of [q | k | v].
  __device__ __forceinline__ int32_t Mixed(int32_t channel) const {
    if (!interleaved) return channel;
    if (channel < 2 * KeyFeatures()) {
      const bool is_key = channel >= KeyFeatures();
      const int32_t in_part = is_key ? channel - KeyFeatures() : channel;
      const int32_t head = in_part / key_dim;
      return head * GroupFeatures() + (is_key ? key_dim : 0) + (in_part - head * key_dim);
    }
    return Value(channel - 2 * KeyFeatures(), 0);
  }
  // Returns the position in a row of qkvz of element `element` of z, [HV, V].
  __device__ __forceinline__ int32_t Z(int32_t element) const {
    if (!interleaved) return Channels() + element;
    return Value(element, group * value_dim);
  }
  // The positions in a row of qkvz where a head's q, k, v and z begin, without a division: of key head `key_head`, and
  // of its `member`th value head.
  __device__ __forceinline__ int32_t QueryOf(int32_t key_head) const {
    return key_head * (interleaved ? GroupFeatures() : key_dim);
  }
  __device__ __forceinline__ int32_t KeyOf(int32_t key_head) const {
    return QueryOf(key_head) + (interleaved ? key_dim : KeyFeatures());
  }
  __device__ __forceinline__ int32_t ValueOf(int32_t key_head, int32_t member) const {
    const int32_t before = interleaved ? 2 * key_dim : 2 * KeyFeatures() + key_head * group * value_dim;
    return (interleaved ? QueryOf(key_head) : 0) + before + member * value_dim;
  }
  __device__ __forceinline__ int32_t ZOf(int32_t key_head, int32_t member) const {
    return ValueOf(key_head, member) + (interleaved ? group * value_dim : ValueFeatures());
  }

  // Return the position in a row of ba of the b (B) or a (A) of value head `head`.
  __device__ __forceinline__ int32_t B(int32_t head) const {
    return interleaved ? head / group * 2 * group + head % group : head;
  }
  __device__ __forceinline__ int32_t A(int32_t head) const { return B(head) + (interleaved ? group : value_heads); }

  // Returns the position in a row of interleaved qkvz of element `element`, in [HV, V], of v (`beyond` 0) or of z
  // (`beyond` group * value_dim). A key head's value heads are adjacent, so an element keeps its offset in the group.
  __device__ __forceinline__ int32_t Value(int32_t element, int32_t beyond) const {
    const int32_t group_values = group * value_dim;
    const int32_t key_head = element / group_values;
    return key_head * GroupFeatures() + 2 * key_dim + beyond + (element - key_head * group_values);
  }
};

inline QkvzIndex MakeQkvzIndex(const LayerDims& dims, ProjectionLayout layout) {
  return {.interleaved = layout == ProjectionLayout::kInterleaved,
          .key_heads = dims.key_heads,
          .value_heads = dims.value_heads,
          .group = dims.group(),
          .key_dim = dims.key_dim,
          .value_dim = dims.value_dim};
}

}  // namespace gdn::gpu
