#include "tools/gdn_parity/backend_data.h"

#include <numeric>
#include <utility>

#include "base/status_macros.h"

namespace gdn::parity {

absl::StatusOr<void*> BackendData::UploadBytes(const void* bytes, size_t count) {
  GDN_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(backend_, count + shift_bytes_));
  void* const begin = static_cast<char*>(buffer.data()) + shift_bytes_;
  GDN_RETURN_IF_ERROR(backend_.CopyIn(begin, bytes, count));
  GDN_RETURN_IF_ERROR(backend_.Synchronize());  // the host bytes are the caller's
  buffers_.push_back(std::move(buffer));
  return begin;
}

absl::StatusOr<StatePair> StatePair::Make(Backend& backend, const LayerDims& dims, int32_t slots, int32_t max_draft) {
  StatePair pair;
  GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(dims, max_draft));
  GDN_ASSIGN_OR_RETURN(pair.device_memory_, DeviceBuffer::Make(backend, slots * layout.slot_bytes()));
  pair.backend_ = &backend;
  pair.host_memory_.resize(slots * layout.slot_floats());
  pair.device_ = {.layout = layout, .data = pair.device_memory_.floats(), .slot_count = slots};
  pair.host_ = {.layout = layout, .data = pair.host_memory_.data(), .slot_count = slots};
  return pair;
}

absl::Status StatePair::Write(int32_t slot, int64_t token_count, const SlotImage& image) {
  GDN_RETURN_IF_ERROR(WriteHostSlot(host_, slot, token_count, image));
  return WriteSlot(*backend_, device_, slot, token_count, image);
}

absl::Status StatePair::WriteBases(const std::vector<float>& bases) {
  const int64_t elements = host_.layout.dims().state_elements();
  SlotImage image;
  for (int32_t slot = 0; slot < host_.slot_count; ++slot) {
    const auto begin = bases.begin() + slot * elements;
    image.base.assign(begin, begin + elements);
    GDN_RETURN_IF_ERROR(Write(slot, 0, image));
  }
  return absl::OkStatus();
}

absl::StatusOr<Difference> StatePair::CompareSlot(int32_t slot, int64_t token_count) const {
  GDN_ASSIGN_OR_RETURN(const SlotImage actual, ReadSlot(*backend_, device_, slot, /*log_length=*/0, token_count));
  GDN_ASSIGN_OR_RETURN(const SlotImage expected, ReadHostSlot(host_, slot, /*log_length=*/0, token_count));
  Difference difference = Compare(actual.base, expected.base);
  difference.Merge(Compare(actual.conv, expected.conv));
  return difference;
}

absl::StatusOr<OutputPair> StatePair::ReadBases(int32_t count) const {
  OutputPair bases;
  for (int32_t slot = 0; slot < count; ++slot) {
    GDN_ASSIGN_OR_RETURN(const SlotImage actual, ReadSlot(*backend_, device_, slot, /*log_length=*/0, 0));
    GDN_ASSIGN_OR_RETURN(const SlotImage expected, ReadHostSlot(host_, slot, /*log_length=*/0, 0));
    bases.Append(actual.base, expected.base);
  }
  return bases;
}

absl::Status StatePair::FoldDevice(const std::vector<int32_t>& log_lengths, const int32_t* base_slots) const {
  std::vector<int32_t> slots(log_lengths.size());
  std::iota(slots.begin(), slots.end(), 0);
  return backend_->MaterializeState({.pool = device_,
                                     .count = static_cast<int32_t>(slots.size()),
                                     .src = slots.data(),
                                     .dst = slots.data(),
                                     .log_lengths = log_lengths.data(),
                                     .src_bases = base_slots});
}

OwnedBatch::OwnedBatch(const std::vector<int32_t>& lengths) : cu_seqlens(lengths.size() + 1), slots(lengths.size()) {
  std::partial_sum(lengths.begin(), lengths.end(), cu_seqlens.begin() + 1);
  std::iota(slots.begin(), slots.end(), 0);
}

PackedBatch OwnedBatch::view() const {
  return {.sequences = static_cast<int32_t>(slots.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
}

}  // namespace gdn::parity
