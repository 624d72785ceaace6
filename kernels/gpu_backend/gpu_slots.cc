#include "kernels/gpu_backend/gpu_slots.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"

namespace gdn::gpu {
namespace {

// Swaps the last two axes of `heads` matrices [rows, cols] -> [cols, rows], in place by way of one matrix.
void TransposeHeads(float* data, int32_t heads, int32_t rows, int32_t cols) {
  std::vector<float> turned(static_cast<size_t>(rows) * static_cast<size_t>(cols));
  for (int32_t h = 0; h < heads; ++h) {
    float* head = data + int64_t{h} * rows * cols;
    constexpr int32_t kTile = 32;  // both sides of a tile stay in the first-level cache
    for (int32_t r0 = 0; r0 < rows; r0 += kTile) {
      for (int32_t c0 = 0; c0 < cols; c0 += kTile) {
        for (int32_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
          for (int32_t c = c0; c < std::min(cols, c0 + kTile); ++c) {
            turned[static_cast<size_t>(c) * rows + r] = head[int64_t{r} * cols + c];
          }
        }
      }
    }
    std::copy(turned.begin(), turned.end(), head);
  }
}

// A pool of one slot in `memory`.
StatePoolView HostPool(const StatePoolView& pool, std::vector<float>& memory) {
  memory.resize(static_cast<size_t>(pool.layout.slot_floats()));
  return {.layout = pool.layout, .data = memory.data(), .slot_count = 1};
}

}  // namespace

absl::StatusOr<SlotImage> ReadDeviceSlot(PinnedRing& ring, const StatePoolView& pool, int32_t slot, int32_t log_length,
                                         int64_t token_count) {
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  std::vector<float> memory;
  const StatePoolView host = HostPool(pool, memory);
  GDN_RETURN_IF_ERROR(ring.CopyOut(host.data, pool.slot(slot), static_cast<size_t>(pool.layout.slot_bytes())));
  const LayerDims& dims = pool.layout.dims();
  TransposeHeads(host.data + pool.layout.base_offset(), dims.value_heads, dims.value_dim, dims.key_dim);
  return ReadHostSlot(host, 0, log_length, token_count);
}

absl::Status WriteDeviceSlot(PinnedRing& ring, const StatePoolView& pool, int32_t slot, int64_t token_count,
                             const SlotImage& image) {
  GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
  std::vector<float> memory;
  const StatePoolView host = HostPool(pool, memory);
  GDN_RETURN_IF_ERROR(WriteHostSlot(host, 0, token_count, image));
  const LayerDims& dims = pool.layout.dims();
  TransposeHeads(host.data + pool.layout.base_offset(), dims.value_heads, dims.key_dim, dims.value_dim);
  return ring.CopyIn(pool.slot(slot), host.data, static_cast<size_t>(pool.layout.slot_bytes()));
}

}  // namespace gdn::gpu
