#include "kernels/backend.h"

#include "base/status_macros.h"

namespace gdn {

absl::StatusOr<DeviceBuffer> DeviceBuffer::Make(Backend& backend, size_t bytes) {
  DeviceBuffer buffer;
  GDN_ASSIGN_OR_RETURN(buffer.data_, backend.Allocate(bytes));
  buffer.backend_ = &backend;
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) backend_->Free(data_, bytes_);
}

}  // namespace gdn
