#include "tests/kernels/decode_slots.h"

#include <algorithm>
#include <limits>

#include "gtest/gtest.h"
#include "tools/gdn_parity/backend_data.h"

namespace gdn {

const char* DeltaRulePathName(DeltaRulePath path) {
  return path == DeltaRulePath::kScan ? "Scan" : path == DeltaRulePath::kChunk ? "Chunk" : "Decode";
}

DecodeSlots::DecodeSlots(Backend& backend, const LayerDims& dims, int32_t slots, int32_t max_draft, DType base_dtype)
    : backend_(backend) {
  pool_ = {.layout = *StateLayout::Make(dims, max_draft, base_dtype), .data = nullptr, .slot_count = slots};
  memory_ = *DeviceBuffer::Make(backend, static_cast<size_t>(slots * pool_.layout.slot_bytes()));
  pool_.data = memory_.floats();
  for (int32_t slot = 0; slot < slots; ++slot) EXPECT_EQ(backend.ZeroSlot(pool_, slot), absl::OkStatus());
}

void DecodeSlots::SetBase(int32_t slot, absl::Span<const float> base) {
  SlotImage image;
  image.base.assign(base.begin(), base.end());
  Write(slot, image);
}

void DecodeSlots::Write(int32_t slot, const SlotImage& image) {
  EXPECT_EQ(WriteSlot(backend_, pool_, slot, /*token_count=*/0, image), absl::OkStatus());
}

void DecodeSlots::PoisonBase(int32_t slot) {
  const std::vector<float> poison(pool_.layout.dims().state_elements(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(
      backend_.CopyIn(pool_.slot(slot) + pool_.layout.base_offset(), poison.data(), poison.size() * sizeof(float)),
      absl::OkStatus());
}

void DecodeSlots::Copy(int32_t to, int32_t from) {
  EXPECT_EQ(backend_.Copy(pool_.slot(to), pool_.slot(from), static_cast<size_t>(pool_.layout.slot_bytes())),
            absl::OkStatus());
}

SlotImage DecodeSlots::Read(int32_t slot, int32_t log_length) {
  absl::StatusOr<SlotImage> image = ReadSlot(backend_, pool_, slot, log_length, /*token_count=*/0);
  EXPECT_EQ(image.status(), absl::OkStatus());
  return image.ok() ? *std::move(image) : SlotImage();
}

std::vector<float> DecodeSlots::ReadAll(int32_t slot) {
  std::vector<float> values(pool_.layout.slot_floats());
  EXPECT_EQ(backend_.CopyOut(values.data(), pool_.slot(slot), values.size() * sizeof(float)), absl::OkStatus());
  EXPECT_EQ(backend_.Synchronize(), absl::OkStatus());
  return values;
}

std::vector<float> DecodeSlots::Call(const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths,
                                     const std::vector<int32_t>& slots,
                                     const std::function<absl::Status(const DeltaRuleParams&)>& run) {
  const std::vector<int32_t> offsets = CumulativeLengths(lengths);
  parity::BackendData data(backend_);
  const LayerDims& dims = pool_.layout.dims();
  float* output = *data.Poisoned(static_cast<int64_t>(inputs.v.size()));
  EXPECT_EQ(run({.pool = pool_,
                 .batch = {.sequences = static_cast<int32_t>(lengths.size()),
                           .cu_seqlens = offsets.data(),
                           .slots = slots.data()},
                 .q = *data.Upload(inputs.q),
                 .k = *data.Upload(inputs.k),
                 .v = *data.Upload(inputs.v),
                 .g = *data.Upload(inputs.g),
                 .beta = *data.Upload(inputs.beta),
                 .q_stride = dims.key_features(),
                 .k_stride = dims.key_features(),
                 .v_stride = dims.value_features(),
                 .output = output,
                 .max_beta = 1.0f}),
            absl::OkStatus());
  return *data.Download(output, static_cast<int64_t>(inputs.v.size()));
}

std::vector<float> DecodeSlots::Decode(const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths,
                                       std::vector<Log>& logs, bool draft) {
  std::vector<int32_t> slots, bases, log_lengths;
  for (const Log& log : logs) {
    slots.push_back(log.slot);
    bases.push_back(log.base_slot);
    log_lengths.push_back(log.length);
  }
  std::vector<float> output = Call(inputs, lengths, slots, [&](const DeltaRuleParams& rule) {
    return backend_.DeltaRuleDecode({.rule = rule,
                                     .log_lengths = log_lengths.data(),
                                     .base_slots = bases == slots ? nullptr : bases.data(),
                                     .draft = draft});
  });
  for (size_t i = 0; i < logs.size(); ++i) logs[i].length = log_lengths[i];
  return output;
}

std::vector<float> DecodeSlots::Decode(const DeltaRuleInputs& inputs, Log& log, bool draft) {
  std::vector<Log> logs = {log};
  std::vector<float> output = Decode(inputs, {static_cast<int32_t>(inputs.tokens)}, logs, draft);
  log = logs[0];
  return output;
}

std::vector<float> DecodeSlots::Run(DeltaRulePath path, const DeltaRuleInputs& inputs,
                                    const std::vector<int32_t>& lengths, const std::vector<int32_t>& slots) {
  if (path != DeltaRulePath::kDecode) {
    return Call(inputs, lengths, slots, [&](const DeltaRuleParams& rule) {
      return path == DeltaRulePath::kScan ? backend_.DeltaRuleScan(rule) : backend_.DeltaRuleChunk(rule);
    });
  }
  const std::vector<int32_t> starts = CumulativeLengths(lengths);
  const int64_t row = inputs.dims.value_features();
  const int32_t step = pool_.layout.max_draft();
  const int32_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<Log> logs;
  for (const int32_t slot : slots) logs.push_back({.slot = slot, .base_slot = slot});
  std::vector<float> output(inputs.v.size());
  for (int32_t done = 0; done < longest; done += step) {
    std::vector<DeltaRuleInputs> parts;
    std::vector<int32_t> part_lengths;
    for (size_t i = 0; i < slots.size(); ++i) {
      part_lengths.push_back(std::clamp(lengths[i] - done, 0, step));
      const int32_t first = starts[i] + std::min(done, lengths[i]);
      parts.push_back(Slice(inputs, first, first + part_lengths[i]));
    }
    const std::vector<float> rows = Decode(Concatenate(parts), part_lengths, logs);
    auto from = rows.begin();
    for (size_t i = 0; i < slots.size(); ++i) {
      std::copy_n(from, part_lengths[i] * row, output.begin() + (starts[i] + std::min(done, lengths[i])) * row);
      from += part_lengths[i] * row;
    }
  }
  std::vector<int32_t> used, used_lengths;
  for (const Log& log : logs) {
    if (log.slot < 0) continue;
    used.push_back(log.slot);
    used_lengths.push_back(log.length);
  }
  EXPECT_EQ(Materialize(used, used, used_lengths), absl::OkStatus());
  return output;
}

absl::Status DecodeSlots::Materialize(const std::vector<int32_t>& src, const std::vector<int32_t>& dst,
                                      const std::vector<int32_t>& log_lengths, const std::vector<int32_t>& src_bases) {
  return backend_.MaterializeState({.pool = pool_,
                                    .count = static_cast<int32_t>(src.size()),
                                    .src = src.data(),
                                    .dst = dst.data(),
                                    .log_lengths = log_lengths.data(),
                                    .src_bases = src_bases.empty() ? nullptr : src_bases.data()});
}

}  // namespace gdn
