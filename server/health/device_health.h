// Whether the device still works: OK, or the first DEVICE_FAILED that anybody met.
//
// What a failed device's states hold is not known any more, and there is no way back but a new process. So whoever
// works with the device reports how it went, and whoever is about to asks first.
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
  // `on_failure` is called with the first failure, by the thread that reports it; status() is that failure by then.
  explicit DeviceHealth(std::function<void(const absl::Status&)> on_failure = nullptr);
  DeviceHealth(const DeviceHealth&) = delete;
  DeviceHealth& operator=(const DeviceHealth&) = delete;

  // Returns `status`, which is kept where it is the first DEVICE_FAILED; other errors say nothing about the device.
  absl::Status Report(absl::Status status);

  // OK, or what the device failed with, for good.
  absl::Status status() const;

 private:
  const std::function<void(const absl::Status&)> on_failure_;
  mutable absl::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
