#include "kernels/gpu_backend/index_staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {
namespace {

constexpr size_t kLeastArenaBytes = size_t{1} << 20;
constexpr size_t kAlignment = 64;

size_t AlignUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void Append(std::string& content, const T* values, size_t count) {
  content.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <typename T>
std::string ContentOf(const T* values, size_t count) {
  std::string content;
  Append(content, values, count);
  return content;
}

// cu_seqlens and slots have a place of their own: token counts and log lengths move with every step, while the same
// sequences come again.
std::string IndicesOf(const PackedBatch& batch) {
  const auto sequences = static_cast<size_t>(batch.sequences);
  std::string content;
  Append(content, batch.cu_seqlens, sequences + 1);
  Append(content, batch.slots, sequences);
  return content;
}

}  // namespace

IndexStaging::~IndexStaging() {
  static_cast<void>(SynchronizeStream(stream_));
  if (arena_ != nullptr) DeviceFree(arena_);
}

absl::StatusOr<const char*> IndexStaging::Place(PinnedRing& ring, std::string content) {
  for (const auto& [provided, at] : provided_) {
    if (provided == content) return at;
  }
  if (const auto found = placed_.find(content); found != placed_.end()) return arena_ + found->second;
  const size_t taken = AlignUp(content.size());
  if (taken > arena_bytes_) {
    GDN_RETURN_IF_ERROR(SynchronizeStream(stream_));  // launches in flight may still read the old arena
    if (arena_ != nullptr) DeviceFree(std::exchange(arena_, nullptr));
    arena_bytes_ = 0;
    placed_.clear();
    const size_t bytes = std::max(4 * taken, kLeastArenaBytes);
    GDN_ASSIGN_OR_RETURN(void* data, DeviceMalloc(bytes));
    arena_ = static_cast<char*>(data);
    arena_bytes_ = bytes;
    next_ = 0;
  }
  if (next_ + taken > arena_bytes_) {
    // Copies run in the stream's order, so launches before this one have read what is overwritten now.
    placed_.clear();
    next_ = 0;
  }
  const size_t offset = next_;
  GDN_RETURN_IF_ERROR(ring.CopyIn(arena_ + offset, content.data(), content.size()));
  next_ += taken;
  placed_.emplace(std::move(content), offset);
  return arena_ + offset;
}

absl::StatusOr<DeviceBatch> IndexStaging::Batch(PinnedRing& ring, const PackedBatch& batch, const int64_t* token_counts,
                                                const int32_t* log_lengths, const int32_t* base_slots) {
  const auto sequences = static_cast<size_t>(batch.sequences);
  DeviceBatch device;
  device.sequences = batch.sequences;
  device.tokens = batch.tokens();
  for (int32_t i = 0; i < batch.sequences; ++i) device.max_length = std::max(device.max_length, batch.length(i));

  GDN_ASSIGN_OR_RETURN(const char* indices, Place(ring, IndicesOf(batch)));
  device.cu_seqlens = reinterpret_cast<const int32_t*>(indices);
  device.slots = device.cu_seqlens + sequences + 1;
  // Values of each sequence, where there are any.
  const auto place = [&](auto* values, auto** placed) -> absl::Status {
    if (values == nullptr) return absl::OkStatus();
    GDN_ASSIGN_OR_RETURN(const char* at, Place(ring, ContentOf(values, sequences)));
    *placed = reinterpret_cast<decltype(values)>(at);
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(place(token_counts, &device.token_counts));
  GDN_RETURN_IF_ERROR(place(log_lengths, &device.log_lengths));
  GDN_RETURN_IF_ERROR(place(base_slots, &device.base_slots));
  return device;
}

size_t IndexStaging::BatchBytes(int32_t sequences) {
  const auto count = static_cast<size_t>(sequences);
  return AlignUp((2 * count + 1) * sizeof(int32_t)) + AlignUp(count * sizeof(int64_t)) +
         2 * AlignUp(count * sizeof(int32_t));
}

size_t IndexStaging::Provide(char* device, char* host, const PackedBatch& batch, const int64_t* token_counts,
                             const int32_t* log_lengths, const int32_t* base_slots) {
  const auto sequences = static_cast<size_t>(batch.sequences);
  provided_.clear();
  size_t used = 0;
  const auto provide = [&](std::string content) {
    std::memcpy(host + used, content.data(), content.size());
    const size_t taken = AlignUp(content.size());
    provided_.emplace_back(std::move(content), device + used);
    used += taken;
  };
  provide(IndicesOf(batch));
  if (token_counts != nullptr) provide(ContentOf(token_counts, sequences));
  if (log_lengths != nullptr) provide(ContentOf(log_lengths, sequences));
  if (base_slots != nullptr) provide(ContentOf(base_slots, sequences));
  return used;
}

absl::StatusOr<const int32_t*> IndexStaging::Arrays(PinnedRing& ring, int32_t count,
                                                    absl::Span<const int32_t* const> arrays) {
  std::string content;
  for (const int32_t* values : arrays) Append(content, values, static_cast<size_t>(count));
  GDN_ASSIGN_OR_RETURN(const char* placed, Place(ring, std::move(content)));
  return reinterpret_cast<const int32_t*>(placed);
}

}  // namespace gdn::gpu
