// Page-locked staging memory for copies between the device and ordinary host buffers. A copy to the device runs later,
// in the stream's order, but the caller may reuse its buffer at once.
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
  // Makes a ring of `bytes` bytes, a multiple of 1024, for copies on `stream`. A copy larger than a quarter of the ring
  // is made in pieces of a quarter. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if there is no page-locked memory.
  static absl::StatusOr<PinnedRing> Make(const Stream& stream, size_t bytes = kDefaultBytes);

  PinnedRing(PinnedRing&& other) noexcept;
  PinnedRing& operator=(PinnedRing&&) = delete;
  ~PinnedRing();

  // Copies `host` into the ring and queues the copy from there to `device` on the stream. Returns before that copy has
  // run; `host` may be changed or freed at once. Waits for the stream if the ring is full.
  absl::Status CopyIn(void* device, const void* host, size_t bytes);
  // Copies device memory to `host` through the ring, after all earlier work of the stream. Blocks: `host` has the data
  // when this returns.
  absl::Status CopyOut(void* host, const void* device, size_t bytes);

 private:
  PinnedRing(const Stream& stream, size_t bytes) : stream_(stream), bytes_(bytes) {}

  // Returns `bytes` bytes of the ring, at most a quarter of it, that no queued copy uses. If the ring's end is reached,
  // first waits for the stream.
  absl::StatusOr<char*> Take(size_t bytes);

  const Stream stream_;
  const size_t bytes_;
  char* data_ = nullptr;
  size_t next_ = 0;
};

}  // namespace gdn::gpu
