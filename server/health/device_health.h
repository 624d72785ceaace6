// Health of a device: OK, or the first DEVICE_FAILED error that was reported.
//
// After a failure nobody knows what the device's states hold, and only a new process can use the device again. So code
// that works with the device reports the status of each operation, and checks the health before it begins one.
// Thread safety: all methods from any thread. Ownership: must outlive all who report to it.
//
//   DeviceHealth health([](const absl::Status& failure) { ... });  // called once
//   GDN_RETURN_IF_ERROR(health.status());
//   return health.Report(backend.Synchronize());
#pragma once

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

class DeviceHealth {
 public:
  // `on_failure` is called once, with the first failure, by the thread that reports it. status() already returns the
  // failure then.
  explicit DeviceHealth(std::function<void(const absl::Status&)> on_failure = nullptr);
  DeviceHealth(const DeviceHealth&) = delete;
  DeviceHealth& operator=(const DeviceHealth&) = delete;

  // Returns `status` as it is. The first one with the reason DEVICE_FAILED becomes the health, and `on_failure` is
  // called before this returns. Other errors do not change the health.
  absl::Status Report(absl::Status status);

  // Returns OK, or the device's failure. A failure is never cleared.
  absl::Status status() const;

 private:
  const std::function<void(const absl::Status&)> on_failure_;
  mutable absl::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
