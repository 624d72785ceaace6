// From launches to kernels and back: gathers rows into backend memory, runs the layer, scatters outputs, commits the
// leases.
//
// Thread safety: for one thread at a time. Ownership: owns its staging buffers.
//
//   BatchExecutor executor(backend, health);
//   executor.Run(launch, ended);  // jobs that have their last result now
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/layer/gdn_layer.h"
#include "server/batcher/step_job.h"
#include "server/health/device_health.h"

namespace gdn {

// Where the lease's step works, with what has to be there before it: a new state zeroed, or the log and the convolution
// columns of a shared one.
absl::StatusOr<StepSlots> PrepareDecodeSlot(Backend& backend, StepLease& lease);

class BatchExecutor {
 public:
  // Nothing is computed on a device that has failed; `health` hears of every step that fails, before its call does.
  BatchExecutor(Backend& backend, DeviceHealth& health) : backend_(backend), health_(health), runner_(backend) {}

  // Runs a launch of jobs, all of one group. Jobs that are done with it, or that failed, are appended to `ended`; their
  // rows have the results.
  void Run(const Launch& launch, std::vector<StepJob*>& ended);

 private:
  struct RowSpan {
    const StepJob* job;
    StepRow* row;
    int32_t first = 0;  // token of the row
    int32_t tokens = 0;
  };

  void Decode(const Launch& launch, std::vector<StepJob*>& ended);
  absl::Status RunDecode(std::vector<RowSpan>& rows, std::vector<StepOutcome>& outcomes);
  void Prefill(const Launch::Part& part, std::vector<StepJob*>& ended);
  absl::Status BeginPrefill(StepJob& job);
  absl::Status RunSegment(StepJob& job, int32_t first, int32_t tokens);
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
};

}  // namespace gdn
