#include "server/batcher/launch_lane.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr size_t kAlignment = 64;

size_t AlignUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Whether each row's bytes begin where the last one's end, in every input and in the output.
bool SideBySide(const LanePart& part) {
  const auto fields = static_cast<size_t>(part.shape().field_count);
  for (size_t i = 1; i < part.rows.size(); ++i) {
    const RowSpan& last = part.rows[i - 1];
    const RowSpan& row = part.rows[i];
    if (row.output() != last.output() + last.output_bytes()) return false;
    for (size_t f = 0; f < fields; ++f) {
      if (row.input(f) != last.input(f) + last.input_bytes(f)) return false;
    }
  }
  return true;
}

}  // namespace

const char* RowSpan::input(size_t field) const {
  const StepField& f = job->fields[field];
  return row->inputs[field] + static_cast<size_t>(first * f.features) * DTypeSize(f.dtype);
}

size_t RowSpan::input_bytes(size_t field) const {
  const StepField& f = job->fields[field];
  return static_cast<size_t>(tokens * f.features) * DTypeSize(f.dtype);
}

char* RowSpan::output() const {
  return row->output + static_cast<size_t>(first * job->output_features) * DTypeSize(job->output_dtype);
}

size_t RowSpan::output_bytes() const {
  return static_cast<size_t>(tokens * job->output_features) * DTypeSize(job->output_dtype);
}

size_t LanePart::output_bytes() const {
  size_t bytes = 0;
  for (const RowSpan& row : rows) bytes += row.output_bytes();
  return bytes;
}

absl::Status LaunchLane::Reserve(absl::Span<LanePart* const> parts) {
  size_t in_bytes = 0, out_bytes = 0;
  for (LanePart* const each : parts) {
    LanePart& part = *each;
    part.in_place = backend_.info().unified_memory && SideBySide(part);
    if (part.in_place) continue;
    part.begin = in_bytes;
    for (size_t f = 0; f < static_cast<size_t>(part.shape().field_count); ++f) {
      part.field_at[f] = in_bytes;
      size_t bytes = 0;
      for (const RowSpan& row : part.rows) bytes += row.input_bytes(f);
      in_bytes += AlignUp(bytes);
    }
    part.arrays_at = in_bytes;
    in_bytes += AlignUp(backend_.BatchArrayBytes(static_cast<int32_t>(part.rows.size())));
    part.output_at = out_bytes;
    out_bytes += AlignUp(part.output_bytes());
  }
  return Grow(in_bytes, out_bytes);
}

absl::Status LaunchLane::Grow(size_t in_bytes, size_t out_bytes) {
  const auto grow = [this](size_t bytes, DeviceBuffer& device, HostBuffer& host) -> absl::Status {
    if (bytes <= device.bytes()) return absl::OkStatus();
    device = DeviceBuffer();  // freed first: the two need not fit side by side
    host = HostBuffer();
    GDN_ASSIGN_OR_RETURN(DeviceBuffer made, DeviceBuffer::Make(backend_, bytes));
    if (!backend_.info().unified_memory) {
      GDN_ASSIGN_OR_RETURN(host, HostBuffer::Make(backend_, bytes));
    }
    device = std::move(made);
    return backend_.Synchronize();  // the memory is cleared before copies that do not wait for operators
  };
  GDN_RETURN_IF_ERROR(grow(in_bytes, in_, host_in_));
  return grow(out_bytes, out_, host_out_);
}

absl::Status LaunchLane::Gather(const LanePart& part, const int32_t* log_lengths, const MaterializeStateParams* fold,
                                LayerStep* step) {
  const StepJob& shape = part.shape();
  std::array<LayerField, kMaxStepFields> storage;
  const absl::Span<const LayerField> fields = LayerFields(step->kind, step->pool.layout.dims(), storage);
  if (part.in_place) {
    const RowSpan& first = part.rows.front();
    for (size_t f = 0; f < fields.size(); ++f) {
      step->*fields[f].tensor = InputTensor(first.input(f), shape.fields[f].dtype);
    }
    step->output = {first.output(), shape.output_dtype};
    return absl::OkStatus();
  }
  char* device = static_cast<char*>(in_.data());
  char* host = host_in_.data() != nullptr ? static_cast<char*>(host_in_.data()) : device;
  for (size_t f = 0; f < fields.size(); ++f) {
    char* to = host + part.field_at[f];
    for (const RowSpan& row : part.rows) {
      std::memcpy(to, row.input(f), row.input_bytes(f));
      to += row.input_bytes(f);
    }
    step->*fields[f].tensor = InputTensor(device + part.field_at[f], shape.fields[f].dtype);
  }
  step->output = {static_cast<char*>(out_.data()) + part.output_at, shape.output_dtype};
  if (host == device) return absl::OkStatus();
  return backend_.StageIn({.device = device + part.begin,
                           .host = host + part.begin,
                           .bytes = part.arrays_at - part.begin,
                           .batch = step->batch,
                           .token_counts = step->token_counts,
                           .log_lengths = log_lengths,
                           .base_slots = step->base_slots,
                           .fold = fold});
}

absl::Status LaunchLane::StageOut(const LanePart& part) {
  if (host_out_.data() == nullptr) return absl::OkStatus();
  return backend_.StageOut(static_cast<char*>(host_out_.data()) + part.output_at,
                           static_cast<const char*>(out_.data()) + part.output_at, part.output_bytes());
}

void LaunchLane::Scatter(const LanePart& part) const {
  if (part.in_place) return;
  const char* from = static_cast<const char*>(host_out_.data() != nullptr ? host_out_.data() : out_.data());
  from += part.output_at;
  for (const RowSpan& row : part.rows) {
    std::memcpy(row.output(), from, row.output_bytes());
    from += row.output_bytes();
  }
}

}  // namespace gdn
