// Copies of a locked session's states between the device that has them and host memory.
//
// A device that has failed is not copied from or to; a copy that fails is reported to its health.
// Thread safety: any thread; the lease keeps steps out. Ownership: images own their memory; what it is made with must
// outlive it.
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
#include "base/thread_pool.h"
#include "server/health/device_health.h"
#include "server/session/session_lease.h"
#include "state_store/host_block_pool.h"

namespace gdn {

// A device with states on it. All of a server's have one numerics_id, so a state goes from any to any.
struct StateDevice {
  Backend& backend;
  DeviceHealth& health;
};

struct StateCopierOptions {
  std::vector<StateDevice> devices;     // at least one; StatePool::device counts them
  HostBlockPool& memory;                // of the copies; states in wire order pass through it on their way to a device
  DType base_dtype = DType::kF32;       // of the slots
  SharedThreadPool* threads = nullptr;  // to spread copies over that a call waits for; nullptr: the caller's alone
};

class StateCopier {
 public:
  enum class Threads { kAll, kCallerOnly };

  explicit StateCopier(const StateCopierOptions& options) : options_(options) {}
  StateCopier(const StateCopier&) = delete;
  StateCopier& operator=(const StateCopier&) = delete;

  // OK, or why nothing is copied from or to the device any more (DEVICE_FAILED).
  absl::Status CheckDevice(int32_t device) const { return At(device).health.status(); }
  // OK where one of the devices still works.
  absl::Status CheckAnyDevice() const;
  // What came of the device beside a copy, which is not to be lost either.
  void NoteDevice(int32_t device, const absl::Status& status) { static_cast<void>(At(device).health.Report(status)); }

  // The states of a resident session. Bases that `known` has in the same version are left out (LayerImage::has_base).
  absl::StatusOr<SessionImagePtr> CopyOut(const SessionLease& lease, const BaseVersions& known,
                                          Threads threads = Threads::kAll);

  // Makes the session resident with the image's states, on the device of `claims`: one a layer of the session. An error
  // leaves it as it was.
  absl::Status CopyIn(const SessionImage& image, std::vector<SlotClaim> claims, SessionLease& lease);

  int64_t failures() const { return failures_; }  // copies that failed

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
