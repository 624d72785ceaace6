#include "tests/support/host_memory_backend.h"

#include <cstring>

#include "base/aligned_buffer.h"

namespace gdn {

bool HostMemoryBackend::Owns(const void* data) const {
  const char* byte = static_cast<const char*>(data);
  auto after = live_.upper_bound(byte);
  if (after == live_.begin()) return false;
  const auto& [begin, bytes] = *--after;
  return byte < begin + bytes;
}

size_t HostMemoryBackend::live_bytes() const {
  size_t bytes = 0;
  for (const auto& [data, of_allocation] : live_) bytes += of_allocation;
  return bytes;
}

absl::StatusOr<void*> HostMemoryBackend::Allocate(size_t bytes) {
  if (allocations_left_ == 0) return absl::ResourceExhaustedError("no memory, as the test asked");
  if (allocations_left_ > 0) --allocations_left_;
  void* data = AlignedAllocate(bytes);
  live_[static_cast<const char*>(data)] = bytes;
  ++total_allocations_;
  return data;
}

void HostMemoryBackend::Free(void* data, size_t bytes) {
  live_.erase(static_cast<const char*>(data));
  AlignedFree(data);
}

absl::Status HostMemoryBackend::CopyIn(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
  return absl::OkStatus();
}

absl::Status HostMemoryBackend::CopyOut(void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
  return absl::OkStatus();
}

}  // namespace gdn
