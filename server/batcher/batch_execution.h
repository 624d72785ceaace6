// From jobs to kernels and back: gathers rows into backend memory, runs the layer, scatters outputs, commits the
// leases.
//
// Thread safety: for the engine's thread alone. Ownership: owns its staging buffers.
//
//   BatchExecutor executor(backend, health);
//   executor.Decode(jobs);                            // all of them, as one batch
//   if (executor.StartPrefill(job)) while (executor.PrefillSegment()) {}
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/layer/gdn_layer.h"
#include "server/batcher/step_job.h"
#include "server/health/device_health.h"

namespace gdn {

// Whether two decode jobs can run as one batch.
bool CanRunTogether(const StepJob& a, const StepJob& b);

// Where the lease's step works, with what has to be there before it: a new state zeroed, or the log and the convolution
// columns of a shared one.
absl::StatusOr<StepSlots> PrepareDecodeSlot(Backend& backend, StepLease& lease);

class BatchExecutor {
 public:
  // Nothing is computed on a device that has failed; `health` hears of every step that fails, before its call does.
  BatchExecutor(Backend& backend, DeviceHealth& health) : backend_(backend), health_(health), runner_(backend) {}

  // Runs the rows of all jobs, which CanRunTogether, and calls their done().
  void Decode(const std::vector<StepJobPtr>& jobs);

  // Makes `job` the prefill in progress; there must be none.
  void StartPrefill(StepJobPtr job);
  bool prefill_in_progress() const { return prefill_.has_value(); }
  // Runs the next segment of the prefill in progress; the last one calls done().
  void PrefillSegment();

 private:
  struct PrefillProgress {
    StepJobPtr job;
    int32_t next = 0;   // token of the call that the next segment begins with
    int32_t slot = -1;  // where the new state is written
    int64_t compute_time_us = 0;
  };
  struct RowSpan {
    const StepJob* job;
    StepRow* row;
    int32_t first = 0;  // token of the row
    int32_t tokens = 0;
  };

  absl::Status BeginPrefill(PrefillProgress& prefill);
  absl::Status RunPrefillSegment(PrefillProgress& prefill, int32_t tokens);
  void EndPrefill(const absl::Status& status);
  absl::Status RunDecode(std::vector<RowSpan>& rows, std::vector<StepOutcome>& outcomes);
  // Copies the spans' inputs, end to end and as float32, into backend memory and points `step` at them and at room for
  // the output.
  absl::Status Gather(const std::vector<RowSpan>& rows, LayerStep* step);
  // Copies the output back to the rows, in their dtype.
  absl::Status Scatter(const std::vector<RowSpan>& rows, const LayerStep& step);

  Backend& backend_;
  DeviceHealth& health_;
  GdnLayerRunner runner_;
  DeviceBuffer staging_;
  std::vector<float> host_staging_;  // used only where the host cannot reach backend memory
  std::optional<PrefillProgress> prefill_;
};

}  // namespace gdn
