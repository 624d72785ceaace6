#include "server/batcher/launch_lane.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr size_t kAlignment = 64;

size_t AlignUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A buffer's size for so many bytes. Segments of prefills grow by and by, and a larger buffer takes the driver
// milliseconds.
size_t Roomy(size_t bytes) {
  constexpr size_t kStep = size_t{32} << 20;
  return bytes < kStep ? std::bit_ceil(bytes) : (bytes + kStep - 1) / kStep * kStep;
}

// A stretch is a run of rows that are adjacent in memory, in every input and in the output. Stretches are copied
// directly if their inputs have this many bytes on average.
constexpr size_t kDirectBytes = size_t{64} << 10;

// True if a row's bytes begin where the last row's end, in every input and in the output. Rows of two calls may be
// adjacent by chance, but they are in two allocations, and a device copy must not cross from one into the other.
bool GoesOn(const RowSpan& last, const RowSpan& row) {
  if (row.job != last.job) return false;
  if (row.output() != last.output() + last.output_bytes()) return false;
  for (size_t f = 0; f < static_cast<size_t>(row.job->shape.field_count); ++f) {
    if (row.input(f) != last.input(f) + last.input_bytes(f)) return false;
  }
  return true;
}

// Calls `of(rows)` for each stretch of adjacent rows, until it returns an error.
template <typename Fn>
absl::Status ForEachStretch(const LanePart& part, const Fn& of) {
  const absl::Span<const RowSpan> rows = part.rows;
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin + 1;
    while (end < rows.size() && GoesOn(rows[end - 1], rows[end])) ++end;
    GDN_RETURN_IF_ERROR(of(rows.subspan(begin, end - begin)));
    begin = end;
  }
  return absl::OkStatus();
}

size_t OutputBytes(absl::Span<const RowSpan> rows) {
  size_t bytes = 0;
  for (const RowSpan& row : rows) bytes += row.output_bytes();
  return bytes;
}

size_t InputBytes(absl::Span<const RowSpan> rows, size_t field) {
  size_t bytes = 0;
  for (const RowSpan& row : rows) bytes += row.input_bytes(field);
  return bytes;
}

size_t StretchesOf(const LanePart& part) {
  size_t stretches = 0;
  static_cast<void>(ForEachStretch(part, [&](absl::Span<const RowSpan> /*rows*/) {
    ++stretches;
    return absl::OkStatus();
  }));
  return stretches;
}

bool IsPageLocked(const RowSpan& row) { return row.job->page_locked; }

}  // namespace

const char* RowSpan::input(size_t field) const { return row->inputs[field] + job->shape.FieldBytes(field, first); }

size_t RowSpan::input_bytes(size_t field) const { return job->shape.FieldBytes(field, tokens); }

char* RowSpan::output() const { return row->output + job->shape.OutputBytes(first); }

size_t RowSpan::output_bytes() const { return job->shape.OutputBytes(tokens); }

size_t LanePart::output_bytes() const { return OutputBytes(rows); }

absl::Status LaunchLane::Reserve(absl::Span<LanePart* const> parts) {
  size_t in_bytes = 0, out_bytes = 0;
  for (LanePart* const each : parts) {
    LanePart& part = *each;
    const size_t stretches = StretchesOf(part);
    part.in_place = backend_.info().unified_memory && stretches == 1;
    if (part.in_place) continue;
    part.begin = in_bytes;
    for (size_t f = 0; f < static_cast<size_t>(part.shape().field_count); ++f) {
      part.field_at[f] = in_bytes;
      in_bytes += AlignUp(InputBytes(part.rows, f));
    }
    part.direct = !backend_.info().unified_memory && std::ranges::all_of(part.rows, IsPageLocked) &&
                  in_bytes - part.begin >= stretches * kDirectBytes;
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
    device = DeviceBuffer();  // freed first, because the old and the new buffer may not both fit
    host = HostBuffer();
    const auto make = [&](size_t size) -> absl::Status {
      GDN_ASSIGN_OR_RETURN(DeviceBuffer made, DeviceBuffer::Make(backend_, size));
      if (!backend_.info().unified_memory) {
        GDN_ASSIGN_OR_RETURN(host, HostBuffer::Make(backend_, size));
      }
      device = std::move(made);
      return absl::OkStatus();
    };
    if (!make(Roomy(bytes)).ok()) GDN_RETURN_IF_ERROR(make(bytes));
    // The new memory is cleared on the operators' stream, and copies do not wait for that.
    return backend_.Synchronize();
  };
  GDN_RETURN_IF_ERROR(grow(in_bytes, in_, host_in_));
  return grow(out_bytes, out_, host_out_);
}

absl::Status LaunchLane::Gather(const LanePart& part, const int32_t* log_lengths, const MaterializeStateParams* fold,
                                LayerStep* step) {
  const StepShape& shape = part.shape();
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
  char* const device = static_cast<char*>(in_.data());
  char* const host = host_in();
  for (size_t f = 0; f < fields.size(); ++f) {
    step->*fields[f].tensor = InputTensor(device + part.field_at[f], shape.fields[f].dtype);
  }
  step->output = {static_cast<char*>(out_.data()) + part.output_at, shape.output_dtype};
  if (!part.direct && !part.sent) GatherInputs(part);
  if (host == device) return absl::OkStatus();
  if (part.direct && !part.sent) GDN_RETURN_IF_ERROR(SendStretches(part));
  const size_t begin = part.direct || part.sent ? part.arrays_at : part.begin;
  return backend_.StageIn({.device = device + begin,
                           .host = host + begin,
                           .bytes = part.arrays_at - begin,
                           .batch = step->batch,
                           .token_counts = step->token_counts,
                           .log_lengths = log_lengths,
                           .base_slots = step->base_slots,
                           .fold = fold});
}

absl::Status LaunchLane::SendAhead(LanePart& part) {
  if (host_in_.data() == nullptr) return absl::OkStatus();
  if (part.direct) {
    GDN_RETURN_IF_ERROR(SendStretches(part));
  } else {
    GatherInputs(part);
    GDN_RETURN_IF_ERROR(backend_.StagePiece(static_cast<char*>(in_.data()) + part.begin, host_in() + part.begin,
                                            part.arrays_at - part.begin));
  }
  part.sent = true;
  return absl::OkStatus();
}

char* LaunchLane::host_in() const {
  return static_cast<char*>(host_in_.data() != nullptr ? host_in_.data() : in_.data());
}

void LaunchLane::GatherInputs(const LanePart& part) const {
  for (size_t f = 0; f < static_cast<size_t>(part.shape().field_count); ++f) {
    char* to = host_in() + part.field_at[f];
    for (const RowSpan& row : part.rows) {
      std::memcpy(to, row.input(f), row.input_bytes(f));
      to += row.input_bytes(f);
    }
  }
}

absl::Status LaunchLane::SendStretches(const LanePart& part) const {
  for (size_t f = 0; f < static_cast<size_t>(part.shape().field_count); ++f) {
    char* to = static_cast<char*>(in_.data()) + part.field_at[f];
    GDN_RETURN_IF_ERROR(ForEachStretch(part, [&](absl::Span<const RowSpan> rows) {
      const size_t bytes = InputBytes(rows, f);
      return backend_.StagePiece(std::exchange(to, to + bytes), rows.front().input(f), bytes);
    }));
  }
  return absl::OkStatus();
}

absl::Status LaunchLane::StageOut(const LanePart& part) {
  if (host_out_.data() == nullptr || part.in_place) return absl::OkStatus();
  if (part.direct) {
    const char* from = static_cast<const char*>(out_.data()) + part.output_at;
    return ForEachStretch(part, [&](absl::Span<const RowSpan> rows) {
      const size_t bytes = OutputBytes(rows);
      return backend_.StageOut(rows.front().output(), std::exchange(from, from + bytes), bytes);
    });
  }
  return backend_.StageOut(static_cast<char*>(host_out_.data()) + part.output_at,
                           static_cast<const char*>(out_.data()) + part.output_at, part.output_bytes());
}

void LaunchLane::Scatter(const LanePart& part) const {
  if (part.in_place || part.direct) return;
  const char* from = static_cast<const char*>(host_out_.data() != nullptr ? host_out_.data() : out_.data());
  from += part.output_at;
  for (const RowSpan& row : part.rows) {
    std::memcpy(row.output(), from, row.output_bytes());
    from += row.output_bytes();
  }
}

}  // namespace gdn
