// From launches to kernels and back: issues a launch's rows to the backend, and ends their steps once it has run.
//
// The two halves may be on different threads, so that the device works on one launch while the next is issued and the
// last is answered. Between them nothing of a launch's rows changes: leases, slots and spares are committed or given
// back by the second half, when the launch's fence has passed.
// Thread safety: Issue by one thread at a time; End of different launches by any, of one job's in the order of Issue.
// Ownership: an issued launch keeps its jobs.
//
//   std::unique_ptr<IssuedLaunch> issued = executor.Issue(launch);
//   executor.Wait(*issued);
//   executor.EndDecodes(*issued);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "kernels/layer/gdn_layer.h"
#include "server/batcher/batch_stats.h"
#include "server/batcher/launch_lane.h"
#include "server/batcher/step_job.h"
#include "server/health/device_health.h"
#include "server/trace/call_trace.h"

namespace gdn {

// Where the lease's step works, with what has to be there before it: a new state zeroed, or the log and the convolution
// columns of a shared one.
absl::StatusOr<StepSlots> PrepareDecodeSlot(Backend& backend, StepLease& lease);

// A launch on its way.
struct IssuedLaunch {
  // Rows whose states one run of operators can reach: all of them, but for pools that lie too far apart.
  struct RowGroup : LanePart {
    StatePoolView pool;                 // of all pools that they are in
    std::vector<StepOutcome> outcomes;  // of decodes, parallel to rows
    std::vector<bool> unrepeatable;     // of decodes, parallel to rows: StepSlots::CannotBeRepeated
    bool may_have_folded = false;       // what folds was issued
    absl::Status status;
    SteadyTime gathered = SteadyTime::InfiniteFuture();  // from here on the device can work on it
  };
  Launch launch;
  std::vector<StepJobPtr> jobs;       // parallel to launch.parts
  std::vector<absl::Status> stopped;  // parallel to launch.parts: why a prefill's segment was not issued
  std::vector<RowGroup> groups;
  LaunchLane* lane = nullptr;
  Fence fence;
  SteadyTime begin;             // of issuing it
  SteadyTime launched;          // its operators are issued
  LaunchStamps stamps;          // of launches with a traced call
  SteadyTime end;               // Wait's: when it had run
  int64_t compute_time_us = 0;  // Wait's: the time that the device had for it alone

  // Of the part's segment, once it has run.
  absl::Status StatusOf(size_t part) const;
};

class BatchExecutor {
 public:
  // Nothing is computed on a device that has failed; `health` hears of every step that fails, before its call does.
  BatchExecutor(Backend& backend, DeviceHealth& health) : backend_(backend), health_(health), runner_(backend) {}

  // Never fails as a whole: what failed is in the parts. `lane` is not used by another launch until this one has ended.
  std::unique_ptr<IssuedLaunch> Issue(Launch launch, LaunchLane& lane);

  // Waits until a launch has run and copies the results to their calls.
  void Wait(IssuedLaunch& issued);

  // Commits the rows of decodes, or fails them. A failed row whose state the step may have changed for good is lost.
  void EndDecodes(IssuedLaunch& issued);
  // Commits or fails a prefill none of whose segments is on its way; OK: its last one has run.
  void EndPrefill(StepJob& job, const absl::Status& status);

  const BatchStats& stats() const { return stats_; }

 private:
  void CountIssued(const IssuedLaunch& issued);
  void CountEnded(const IssuedLaunch& issued);
  void CollectDecodes(IssuedLaunch& issued);
  void CollectPrefills(IssuedLaunch& issued);
  absl::Status RunDecode(IssuedLaunch::RowGroup& part, IssuedLaunch& issued);
  absl::Status RunPrefill(IssuedLaunch::RowGroup& part, IssuedLaunch& issued);

  Backend& backend_;
  DeviceHealth& health_;
  GdnLayerRunner runner_;  // of whoever issues
  BatchStats stats_;

  absl::Mutex mu_;
  SteadyTime last_end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
