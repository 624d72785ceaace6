// Moves the inputs of a launch's rows into backend memory, and the outputs back.
//
// Rows are gathered end to end in their wire dtype, and results are scattered to their calls. If the host can reach
// backend memory and the rows are adjacent already, operators use the calls' own memory. If a device copies, it copies
// directly from and to the calls' own memory, provided that this is page-locked and adjacent rows are large.
// Thread safety: for one thread at a time. Ownership: owns its buffers, which grow to the largest launch seen; the
// caller owns the rows, which must stay until Scatter.
//
//   GDN_RETURN_IF_ERROR(lane.Reserve({&part}));
//   GDN_RETURN_IF_ERROR(lane.Gather(part, log_lengths, /*fold=*/nullptr, &step));
//   GDN_RETURN_IF_ERROR(runner.Decode(step, log_lengths));
//   GDN_RETURN_IF_ERROR(lane.StageOut(part));
//   ...the launch's fence passes...
//   lane.Scatter(part);
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/layer/gdn_layer.h"
#include "server/batcher/step_job.h"

namespace gdn {

// Tokens [first, first + tokens) of a row. Job and row are borrowed. Inputs and output point at the first of these
// tokens in the call's own memory, and the sizes are those of all of them.
struct RowSpan {
  StepJob* job = nullptr;
  StepRow* row = nullptr;
  int32_t first = 0;
  int32_t tokens = 0;

  const char* input(size_t field) const;
  size_t input_bytes(size_t field) const;
  char* output() const;
  size_t output_bytes() const;
};

// Rows of a launch that one run of operators handles, and the offsets of their tensors in the lane's buffers. A field
// has one dtype in all rows.
struct LanePart {
  std::vector<RowSpan> rows;

  // Set by Reserve. Offsets are in bytes, in the lane's buffer for inputs or (output_at) in that for outputs:
  bool in_place = false;  // operators use the calls' own memory
  bool direct = false;    // the device copies from and to the calls' own memory
  bool sent = false;      // SendAhead has sent the inputs
  std::array<size_t, kMaxStepFields> field_at{};
  size_t arrays_at = 0;  // offset of the index arrays, which follow the fields
  size_t begin = 0;      // offset of the first input
  size_t output_at = 0;

  const StepJob& job() const { return *rows.front().job; }  // job of the first row; all rows have its shape and kind
  const StepShape& shape() const { return job().shape; }
  size_t output_bytes() const;
};

class LaunchLane {
 public:
  explicit LaunchLane(Backend& backend) : backend_(backend) {}

  // Makes space for all parts of a launch, and sets their offsets. The lane's last launch must have ended, because
  // smaller buffers are freed first. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED), and errors of the device.
  absl::Status Reserve(absl::Span<LanePart* const> parts);
  // Gathers and sends a part's inputs before anything issued later runs, so that Gather sends only the index arrays.
  // Does nothing if operators can read host memory. Call Reserve first. Errors of the backend.
  absl::Status SendAhead(LanePart& part);
  // Sends a part's inputs, unless SendAhead has, and index arrays before anything issued later runs: the batch, and the
  // arrays in `step`, `log_lengths` (null in a prefill) and `fold` (null in a decode). If operators can read host
  // memory, sends nothing and only gathers rows that are apart. Points step's tensors at the inputs and at space for
  // the output. Call Reserve first. Errors of the backend.
  absl::Status Gather(const LanePart& part, const int32_t* log_lengths, const MaterializeStateParams* fold,
                      LayerStep* step);
  // Issues the copies of a part's outputs from the device, to the lane or directly to the calls, without waiting. They
  // are complete when the launch's fence has passed. Does nothing if operators wrote there. Errors of the backend.
  absl::Status StageOut(const LanePart& part);
  // Copies a part's outputs from the lane to their calls, unless they are there already. Call once the launch's fence
  // has passed.
  void Scatter(const LanePart& part) const;

 private:
  absl::Status Grow(size_t in_bytes, size_t out_bytes);
  char* host_in() const;                          // where the host gathers inputs
  void GatherInputs(const LanePart& part) const;  // copies them there
  absl::Status SendStretches(const LanePart& part) const;

  Backend& backend_;
  DeviceBuffer in_, out_;
  HostBuffer host_in_, host_out_;  // used if the host cannot reach backend memory
};

}  // namespace gdn
