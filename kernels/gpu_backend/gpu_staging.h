// Page-locked staging memory: copies of ordinary host buffers run asynchronously, and the caller may free its buffer at
// once.
//
// Thread safety: one thread at a time; PinnedRing blocks while the ring is full of copies that have not run. Ownership:
// owns its memory; the stream must outlive it.
//
//   GDN_ASSIGN_OR_RETURN(PinnedRing ring, PinnedRing::Make(stream));
//   GDN_RETURN_IF_ERROR(ring.CopyIn(device, host, bytes));
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {

class PinnedRing {
 public:
  static constexpr size_t kDefaultBytes = size_t{16} << 20;
  // `bytes` must be a multiple of 1024. A copy is made in pieces of a quarter of the ring.
  static absl::StatusOr<PinnedRing> Make(const Stream& stream, size_t bytes = kDefaultBytes);

  PinnedRing(PinnedRing&& other) noexcept;
  PinnedRing& operator=(PinnedRing&&) = delete;
  ~PinnedRing();

  // Returns before the copy has run.
  absl::Status CopyIn(void* device, const void* host, size_t bytes);
  // Returns when all earlier work is done and `host` has the data.
  absl::Status CopyOut(void* host, const void* device, size_t bytes);

 private:
  PinnedRing(const Stream& stream, size_t bytes) : stream_(stream), bytes_(bytes) {}

  // Returns `bytes` bytes of the ring that no copy in flight uses; waits for the stream if needed.
  absl::StatusOr<char*> Take(size_t bytes);

  const Stream stream_;
  const size_t bytes_;
  char* data_ = nullptr;
  size_t next_ = 0;
};

}  // namespace gdn::gpu
