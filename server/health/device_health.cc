#include "server/health/device_health.h"

#include <utility>

#include "base/error.h"

namespace gdn {

DeviceHealth::DeviceHealth(std::function<void(const absl::Status&)> on_failure) : on_failure_(std::move(on_failure)) {}

absl::Status DeviceHealth::Report(absl::Status status) {
  if (status.ok() || ErrorReason(status) != reason::kDeviceFailed) return status;
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return status;
    failure_ = status;
  }
  if (on_failure_) on_failure_(status);
  return status;
}

absl::Status DeviceHealth::status() const {
  absl::MutexLock lock(&mu_);
  return failure_;
}

}  // namespace gdn
