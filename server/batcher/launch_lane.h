// A launch's rows on their way into backend memory and back.
//
// Rows are gathered as the bytes they came as, end to end, and results scattered to their calls. Where the host reaches
// backend memory and the rows lie side by side already, operators read and write the calls' own memory; where a device
// copies, it does so from and to the calls' own memory if that is page-locked and what lies side by side is long.
// Thread safety: for one thread at a time. Ownership: owns its buffers, which grow to the largest launch seen; rows are
// the caller's, and must stay until Scatter.
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

// Tokens [first, first + tokens) of a row.
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

// Rows of a launch whose states are in one pool, and where their tensors are while it runs. One dtype a field.
struct LanePart {
  std::vector<RowSpan> rows;

  // Reserve's.
  bool in_place = false;  // operators use the calls' own memory
  bool direct = false;    // the device copies from and to it
  std::array<size_t, kMaxStepFields> field_at{};
  size_t arrays_at = 0;  // behind the fields
  size_t begin = 0;      // of the inputs
  size_t output_at = 0;

  const StepJob& shape() const { return *rows.front().job; }
  size_t output_bytes() const;
};

class LaunchLane {
 public:
  explicit LaunchLane(Backend& backend) : backend_(backend) {}

  // Room for all parts of a launch. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED).
  absl::Status Reserve(absl::Span<LanePart* const> parts);
  // Sends a part's inputs, with the batch and the arrays that `step`, `log_lengths` (null in a prefill) and `fold`
  // (null in a decode) name, and points step's tensors at them and at room for the output.
  absl::Status Gather(const LanePart& part, const int32_t* log_lengths, const MaterializeStateParams* fold,
                      LayerStep* step);
  absl::Status StageOut(const LanePart& part);
  void Scatter(const LanePart& part) const;

 private:
  absl::Status Grow(size_t in_bytes, size_t out_bytes);
  absl::Status SendInputs(const LanePart& part, char* device) const;

  Backend& backend_;
  DeviceBuffer in_, out_;
  HostBuffer host_in_, host_out_;  // where the host cannot reach backend memory
};

}  // namespace gdn
