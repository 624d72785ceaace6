// Copies states concurrently with the operators' stream, each on a stream of its own.
//
// Thread safety: any thread, several at a time. Ownership: owns its streams, as many as copies ever ran at once.
//
//   GpuTransfers transfers(device);
//   GDN_RETURN_IF_ERROR(transfers.Out(host, slot, bytes));  // `host` holds it now
#pragma once

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/gpu/stream.h"

namespace gdn::gpu {

class GpuTransfers {
 public:
  explicit GpuTransfers(int device) : device_(device) {}
  GpuTransfers(const GpuTransfers&) = delete;
  ~GpuTransfers();

  // Copy device memory to the host, or host memory to the device, or zero device memory (aligned to 16 bytes, `bytes` a
  // multiple of 4). They block until the work is complete, also after a failure. Not ordered with other streams. Copies
  // are fastest if `host` is page-locked.
  absl::Status Out(void* host, const void* device, size_t bytes);
  absl::Status In(void* device, const void* host, size_t bytes);
  absl::Status Zero(void* device, size_t bytes);

 private:
  // Calls copy(stream) with a stream that nobody else uses, and waits for the stream. Makes the device the thread's
  // current one. Returns the first failure.
  template <typename Copy>
  absl::Status Run(Copy copy);
  absl::StatusOr<Stream> Take();
  void Return(const Stream& stream);

  const int device_;

  absl::Mutex mu_;
  std::vector<Stream> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn::gpu
