// Tensors and state pools of a parity case on the backend under test; states also on the host, for the reference.
//
// Thread safety: for one thread. Ownership: frees its backend memory on destruction; the backend must outlive it.
//
//   BackendData data(backend);
//   GDN_ASSIGN_OR_RETURN(float* x, data.Upload(random.Normal(n)));
//   GDN_ASSIGN_OR_RETURN(std::vector<float> y, data.Download(device_y, n));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/slot_access.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/random_tensor.h"

namespace gdn::parity {

class BackendData {
 public:
  explicit BackendData(Backend& backend) : backend_(backend) {}

  Backend& backend() const { return backend_; }
  // Makes later allocations begin this many bytes after an aligned address.
  void ShiftAllocations(int64_t bytes) { shift_bytes_ = bytes; }
  template <typename T>
  // Allocates backend memory, copies the values there and waits for it. The memory lives as long as this object.
  absl::StatusOr<T*> Upload(const std::vector<T>& values) {
    GDN_ASSIGN_OR_RETURN(void* data, UploadBytes(values.data(), values.size() * sizeof(T)));
    return static_cast<T*>(data);
  }
  // Allocates memory for outputs, with all bits set: NaN in every floating-point format, -1 in every integer. So an
  // element that a kernel does not write compares as infinitely far.
  template <typename T = float>
  absl::StatusOr<T*> Poisoned(int64_t count) {
    const std::vector<unsigned char> bytes(count * sizeof(T), 0xff);
    GDN_ASSIGN_OR_RETURN(void* data, UploadBytes(bytes.data(), bytes.size()));
    return static_cast<T*>(data);
  }
  // Returns `count` elements from the backend's memory. Waits for the work issued before, and for the copy.
  template <typename T>
  absl::StatusOr<std::vector<T>> Download(const T* device, int64_t count) {
    std::vector<T> values(count);
    GDN_RETURN_IF_ERROR(backend_.CopyOut(values.data(), device, count * sizeof(T)));
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    return values;
  }

 private:
  absl::StatusOr<void*> UploadBytes(const void* bytes, size_t count);

  Backend& backend_;
  int64_t shift_bytes_ = 0;
  std::vector<DeviceBuffer> buffers_;
};

// A pool of slots in backend memory, and the same pool on the host for the reference.
class StatePair {
 public:
  // Makes a pool of `slots` slots of fresh states on the backend, and the same pool on the host. `max_draft`: as for
  // StateLayout::Make. Errors of StateLayout::Make and of the backend.
  static absl::StatusOr<StatePair> Make(Backend& backend, const LayerDims& dims, int32_t slots, int32_t max_draft);

  const StatePoolView& device() const { return device_; }
  const StatePoolView& host() const { return host_; }

  // Sets the slot in both pools to `image`, after `token_count` tokens.
  absl::Status Write(int32_t slot, int64_t token_count, const SlotImage& image);
  // Sets slot i to a state with base i of `bases`, [slots, HV, K, V], an empty log and zero convolution columns.
  absl::Status WriteBases(const std::vector<float>& bases);

  // Compares base and convolution columns of the slot on the device with those on the host, after `token_count` tokens.
  // The device's log must have been folded.
  absl::StatusOr<Difference> CompareSlot(int32_t slot, int64_t token_count) const;
  // Returns the bases of slots 0 .. count - 1, the device's as `actual`. The device's logs must have been folded.
  absl::StatusOr<OutputPair> ReadBases(int32_t count) const;
  // Folds the device's slots 0 .. log_lengths.size() - 1 in place, onto the bases of `base_slots` (null: their own).
  absl::Status FoldDevice(const std::vector<int32_t>& log_lengths, const int32_t* base_slots = nullptr) const;

 private:
  Backend* backend_ = nullptr;
  DeviceBuffer device_memory_;
  std::vector<float> host_memory_;
  StatePoolView device_;
  StatePoolView host_;
};

// A packed batch that owns its index arrays. Sequence i is rows [cu_seqlens[i], cu_seqlens[i + 1]) and uses slot i.
struct OwnedBatch {
  explicit OwnedBatch(const std::vector<int32_t>& lengths);
  PackedBatch view() const;
  int32_t tokens() const { return cu_seqlens.back(); }

  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> slots;
};

}  // namespace gdn::parity
