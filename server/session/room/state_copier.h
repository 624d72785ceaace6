// Copies states of a locked session between its device and host memory.
//
// Nothing is copied from or to a device that has failed. A copy that fails is reported to the device's health.
// Thread safety: any thread; the lease keeps steps out. Ownership: images own their memory; the members of the options
// must outlive the copier.
//
//   StateCopier copier({.devices = {{backend, health}}, .memory = memory, .threads = &threads});
//   GDN_ASSIGN_OR_RETURN(SessionImagePtr image, copier.CopyOut(lease, /*known=*/{}));
//   GDN_RETURN_IF_ERROR(copier.CopyIn(*image, std::move(claims), lease));
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/threads/thread_pool.h"
#include "server/health/device_health.h"
#include "server/session/session_lease.h"
#include "state_store/host_block_pool.h"

namespace gdn {

// A device with states on it. All devices of a server have the same numerics_id, so a state may move between any two.
struct StateDevice {
  Backend& backend;
  DeviceHealth& health;
};

struct StateCopierOptions {
  std::vector<StateDevice> devices;  // at least one; StatePool::device is an index into it
  HostBlockPool& memory;             // for the copies; states in wire order pass through it on their way to a device
  DType base_dtype = DType::kF32;    // dtype of the bases in slots
  // Spreads copies that a call waits for. nullptr: only the caller's thread copies.
  SharedThreadPool* threads = nullptr;
};

class StateCopier {
 public:
  enum class Threads { kAll, kCallerOnly };

  explicit StateCopier(const StateCopierOptions& options) : options_(options) {}
  StateCopier(const StateCopier&) = delete;
  StateCopier& operator=(const StateCopier&) = delete;

  // OK, or UNAVAILABLE (DEVICE_FAILED) if the device has failed, so that nothing is copied from or to it any more.
  absl::Status CheckDevice(int32_t device) const { return At(device).health.status(); }
  // OK if one of the devices still works; else the UNAVAILABLE (DEVICE_FAILED) of the first device.
  absl::Status CheckAnyDevice() const;
  // Reports another result of work on a device to its health.
  void NoteDevice(int32_t device, const absl::Status& status) { static_cast<void>(At(device).health.Report(status)); }

  // Copies the states of a session that is on the device to host memory, on all threads of the options or only the
  // caller's. Leaves out bases that `known` has in the same version (LayerImage::has_base). The session is unchanged.
  // UNAVAILABLE (DEVICE_FAILED), errors of HostBlockPool::Take and Backend::TransferOut.
  absl::StatusOr<SessionImagePtr> CopyOut(const SessionLease& lease, const BaseVersions& known,
                                          Threads threads = Threads::kAll);

  // Copies the image's states to the device of `claims`, and makes the session resident there. `claims`: one for each
  // layer of the session; used up. After an error the session is unchanged: UNAVAILABLE (DEVICE_FAILED), INTERNAL if
  // the image has another layout or lacks a base, errors of Backend::TransferIn.
  absl::Status CopyIn(const SessionImage& image, std::vector<SlotClaim> claims, SessionLease& lease);

  int64_t failures() const { return failures_; }  // number of copies that failed

 private:
  const StateDevice& At(int32_t device) const { return options_.devices[static_cast<size_t>(device)]; }
  absl::Status CopyLayersOut(SessionImage& image, const SessionLease& lease, const BaseVersions& known,
                             SharedThreadPool* threads);
  static absl::Status CopyLayerOut(Backend& backend, const LayerImage& layer, const LayerSlots& from);
  absl::Status CopyLayerIn(const LayerImage& layer, const SlotRef& slot);
  absl::Status Install(const SessionImage& image, std::vector<SlotClaim> claims, SessionLease& lease);
  absl::Status Report(int32_t device, absl::Status status);

  const StateCopierOptions options_;
  std::atomic<int64_t> failures_{0};
};

}  // namespace gdn
