#include "kernels/gpu_backend/gpu_transfers.h"

#include "base/status_macros.h"
#include "kernels/fill/fill.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {

GpuTransfers::~GpuTransfers() {
  for (const Stream& stream : idle_) DestroyStream(stream);
}

absl::Status GpuTransfers::Out(void* host, const void* device, size_t bytes) {
  return Run([=](const Stream& stream) { return CopyToHost(host, device, bytes, stream); });
}

absl::Status GpuTransfers::In(void* device, const void* host, size_t bytes) {
  return Run([=](const Stream& stream) { return CopyToDevice(device, host, bytes, stream); });
}

absl::Status GpuTransfers::Zero(void* device, size_t bytes) {
  return Run([=](const Stream& stream) { return FillZeroGpu(device, bytes, stream); });
}

template <typename Copy>
absl::Status GpuTransfers::Run(Copy copy) {
  GDN_RETURN_IF_ERROR(UseDevice(device_));
  GDN_ASSIGN_OR_RETURN(const Stream stream, Take());
  absl::Status status = copy(stream);
  // Waited for even after a failure: part of the copy may be under way, and the caller frees its memory.
  status.Update(SynchronizeStream(stream));
  Return(stream);
  return status;
}

absl::StatusOr<Stream> GpuTransfers::Take() {
  {
    absl::MutexLock lock(&mu_);
    if (!idle_.empty()) {
      const Stream stream = idle_.back();
      idle_.pop_back();
      return stream;
    }
  }
  return MakeStream(device_);
}

void GpuTransfers::Return(const Stream& stream) {
  absl::MutexLock lock(&mu_);
  idle_.push_back(stream);
}

}  // namespace gdn::gpu
