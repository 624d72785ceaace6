// Executes launches: issues a launch's rows to the backend, and ends their steps once the launch has run.
//
// The two halves may be on different threads, so that the device works on one launch while the next is issued and the
// last is answered. Between the two halves a launch's leases, slots and spares do not change; the second half commits
// them or gives them back, after the launch's fence has passed.
// Thread safety: one thread at a time calls Issue. Wait, EndDecodes and EndPrefill may be called from any thread, but
// for launches of the same job in the order of Issue.
// Ownership: an issued launch keeps its jobs alive.
//
//   std::unique_ptr<IssuedLaunch> issued = executor.Issue(std::move(launch), lane);
//   executor.Wait(*issued);
//   executor.EndDecodes(*issued);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "base/threads/steady_clock.h"
#include "kernels/layer/gdn_layer.h"
#include "server/batcher/batch_stats.h"
#include "server/batcher/launch_lane.h"
#include "server/batcher/step_job.h"
#include "server/health/device_health.h"
#include "server/trace/call_trace.h"

namespace gdn {

// Returns the slots that the lease's step reads and writes, and issues to the device what prepares them. A new state is
// zeroed. A slot that replaces a shared one gets a copy of its log and convolution columns. Errors of
// StepLease::PrepareDecode and of the backend.
absl::StatusOr<StepSlots> PrepareDecodeSlot(Backend& backend, StepLease& lease);

// A launch that was issued and has steps that have not ended.
struct IssuedLaunch {
  // Rows whose states one run of operators can reach. A launch has more than one group only if its pools are too far
  // apart in memory.
  struct RowGroup : LanePart {
    StatePoolView pool;                 // covers the pools of all rows
    std::vector<StepOutcome> outcomes;  // for decodes, parallel to rows: what to commit
    std::vector<bool> unrepeatable;     // for decodes, parallel to rows: a fold overwrites what a retry would read
    bool may_have_written = false;      // an operator that writes to the rows' slots was issued
    std::vector<bool>
        overwrites_draft;  // for decodes, parallel to rows: tokens overwrite what a retry of accepting would read
    bool may_have_folded = false;                // an operator that folds was issued
    std::vector<bool> unrepeatable_acceptances;  // for decodes, parallel to rows: so does the work of its acceptance
    bool accepted = false;                       // the work of acceptances was issued
    absl::Status status;
    // When its inputs were sent, so that the device could begin; InfiniteFuture if they were not.
    SteadyTime gathered = SteadyTime::InfiniteFuture();
  };
  Launch launch;
  std::vector<StepJobPtr> jobs;       // parallel to launch.parts
  std::vector<absl::Status> stopped;  // parallel to launch.parts: why a prefill's segment was not issued, or OK
  std::vector<RowGroup> groups;
  LaunchLane* lane = nullptr;
  Fence fence;
  SteadyTime begin;             // when issuing began
  SteadyTime launched;          // when its operators were issued
  LaunchStamps stamps;          // times of the launch, set if one of its calls is traced
  SteadyTime end;               // set by Wait: when the launch had run
  int64_t compute_time_us = 0;  // set by Wait: time that the device spent on this launch

  // Returns the status of part `part` (an index in launch.parts) after Wait: why it was not issued, or its group's
  // status. OK for a part without tokens.
  absl::Status StatusOf(size_t part) const;
};

class BatchExecutor {
 public:
  // Nothing is computed on a failed device. Every failed launch is reported to `health` before its calls are answered.
  // Both must outlive the executor.
  BatchExecutor(Backend& backend, DeviceHealth& health) : backend_(backend), health_(health), runner_(backend) {}

  // Issues a launch, and never returns null. Does not wait for the device, unless operators compute when they are
  // issued. Failures are recorded in its groups and in `stopped`. `lane` must not be used by another launch until this
  // one has ended. `before_prefill` is called when the inputs of prefills are on their way to a device that works
  // behind the host, and before their operators are issued. It may issue a launch of decodes in another lane.
  std::unique_ptr<IssuedLaunch> Issue(
      Launch launch, LaunchLane& lane, absl::FunctionRef<void()> before_prefill = [] {});

  // Blocks until a launch has run and copies the results to their calls. Failures are recorded in its groups. Call it
  // once for each launch, before its steps are ended.
  void Wait(IssuedLaunch& issued);

  // Commits or fails the rows of decodes, and ends their leases. Call it after Wait. If a failed step may have changed
  // its state for good, the session is lost.
  void EndDecodes(IssuedLaunch& issued);
  // Commits a prefill if `status` is OK, which means that its last segment has run; else fails it with `status`. None
  // of its segments may be on its way.
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
  GdnLayerRunner runner_;  // used by Issue
  BatchStats stats_;

  absl::Mutex mu_;
  SteadyTime last_end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
