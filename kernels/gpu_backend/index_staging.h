// The index arrays of steps on the device, sent once: operators that ask for what is already there get it.
//
// Thread safety: for the thread that issues operators. Ownership: owns device memory; what it returned may be used by
// the launches of this call.
//
//   GDN_ASSIGN_OR_RETURN(gpu::DeviceBatch batch, indices.Batch(ring, params.batch, params.token_counts, nullptr));
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/common/packed_batch.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu_backend/gpu_staging.h"

namespace gdn::gpu {

class IndexStaging {
 public:
  explicit IndexStaging(const Stream& stream) : stream_(stream) {}
  IndexStaging(const IndexStaging&) = delete;
  ~IndexStaging();

  // All but the batch may be null.
  absl::StatusOr<DeviceBatch> Batch(PinnedRing& ring, const PackedBatch& batch, const int64_t* token_counts,
                                    const int32_t* log_lengths, const int32_t* base_slots = nullptr);

  // For a launch that brings its arrays in a copy of its own: writes what Batch() would send to `host`, which has
  // BatchBytes(sequences), and takes it to be at `device` until ForgetProvided or the next Provide. Returns the bytes.
  static size_t BatchBytes(int32_t sequences);
  size_t Provide(char* device, char* host, const PackedBatch& batch, const int64_t* token_counts,
                 const int32_t* log_lengths, const int32_t* base_slots);
  void ForgetProvided() { provided_.clear(); }

  // Arrays of `count`, end to end.
  absl::StatusOr<const int32_t*> Arrays(PinnedRing& ring, int32_t count, absl::Span<const int32_t* const> arrays);

 private:
  // Where `content` is on the device, uploading it unless it is there already.
  absl::StatusOr<const char*> Place(PinnedRing& ring, std::string content);

  const Stream stream_;
  char* arena_ = nullptr;  // contents lie one behind another; when it is full, all of them are given up
  size_t arena_bytes_ = 0;
  size_t next_ = 0;
  absl::flat_hash_map<std::string, size_t> placed_;            // content -> offset
  std::vector<std::pair<std::string, const char*>> provided_;  // content, and where it is
};

}  // namespace gdn::gpu
