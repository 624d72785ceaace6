#include "kernels/gpu_backend/index_staging.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/status_macros.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {
namespace {

constexpr size_t kLeastArenaBytes = size_t{1} << 20;
constexpr size_t kAlignment = 64;

size_t AlignUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
absl::Span<const char> BytesOf(const T* values, size_t count) {
  return {reinterpret_cast<const char*>(values), count * sizeof(T)};
}

size_t SizeOf(absl::Span<const absl::Span<const char>> content) {
  size_t bytes = 0;
  for (const absl::Span<const char> array : content) bytes += array.size();
  return bytes;
}

// cu_seqlens and slots have a place of their own: token counts and log lengths move with every step, while the same
// sequences come again.
std::array<absl::Span<const char>, 2> ContentOf(const PackedBatch& batch) {
  const auto sequences = static_cast<size_t>(batch.sequences);
  return {BytesOf(batch.cu_seqlens, sequences + 1), BytesOf(batch.slots, sequences)};
}

constexpr size_t kMaxFoldArrays = 4;

absl::InlinedVector<absl::Span<const char>, kMaxFoldArrays> ContentOf(const MaterializeStateParams& fold) {
  const auto count = static_cast<size_t>(fold.count);
  absl::InlinedVector<absl::Span<const char>, kMaxFoldArrays> content = {
      BytesOf(fold.src, count), BytesOf(fold.dst, count), BytesOf(fold.log_lengths, count)};
  if (fold.src_bases != nullptr) content.push_back(BytesOf(fold.src_bases, count));
  return content;
}

}  // namespace

IndexStaging::~IndexStaging() {
  static_cast<void>(SynchronizeStream(stream_));
  if (arena_ != nullptr) DeviceFree(arena_);
}

const char* IndexStaging::FindProvided(Content content) const {
  const size_t bytes = SizeOf(content);
  for (const Provided& provided : provided_) {
    if (provided.bytes != bytes) continue;
    const char* at = provided_bytes_.data() + provided.at;
    const bool same = std::all_of(content.begin(), content.end(), [&at](absl::Span<const char> array) {
      const bool equal = std::memcmp(at, array.data(), array.size()) == 0;
      at += array.size();
      return equal;
    });
    if (same) return provided.device;
  }
  return nullptr;
}

absl::StatusOr<const char*> IndexStaging::Place(PinnedRing& ring, Content content) {
  if (const char* provided = FindProvided(content); provided != nullptr) return provided;
  if (refuses_) return absl::InternalError("an index array that the launch did not bring cannot be recorded");
  sought_.clear();
  for (const absl::Span<const char> array : content) sought_.append(array.data(), array.size());
  if (const auto found = placed_.find(sought_); found != placed_.end()) return arena_ + found->second;
  const size_t taken = AlignUp(sought_.size());
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
  GDN_RETURN_IF_ERROR(ring.CopyIn(arena_ + offset, sought_.data(), sought_.size()));
  next_ += taken;
  placed_.emplace(sought_, offset);
  return arena_ + offset;
}

absl::StatusOr<DeviceBatch> IndexStaging::Batch(PinnedRing& ring, const PackedBatch& batch, const int64_t* token_counts,
                                                const int32_t* log_lengths, const int32_t* base_slots) {
  const auto sequences = static_cast<size_t>(batch.sequences);
  DeviceBatch device;
  device.sequences = batch.sequences;
  device.tokens = batch.tokens();
  for (int32_t i = 0; i < batch.sequences; ++i) device.max_length = std::max(device.max_length, batch.length(i));

  GDN_ASSIGN_OR_RETURN(const char* indices, Place(ring, ContentOf(batch)));
  device.cu_seqlens = reinterpret_cast<const int32_t*>(indices);
  device.slots = device.cu_seqlens + sequences + 1;
  // Values of each sequence, where there are any.
  const auto place = [&](auto* values, auto** placed) -> absl::Status {
    if (values == nullptr) return absl::OkStatus();
    GDN_ASSIGN_OR_RETURN(const char* at, Place(ring, {BytesOf(values, sequences)}));
    *placed = reinterpret_cast<decltype(values)>(at);
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(place(token_counts, &device.token_counts));
  GDN_RETURN_IF_ERROR(place(log_lengths, &device.log_lengths));
  GDN_RETURN_IF_ERROR(place(base_slots, &device.base_slots));
  return device;
}

absl::StatusOr<const int32_t*> IndexStaging::Fold(PinnedRing& ring, const MaterializeStateParams& fold) {
  GDN_ASSIGN_OR_RETURN(const char* placed, Place(ring, ContentOf(fold)));
  return reinterpret_cast<const int32_t*>(placed);
}

absl::StatusOr<const CopyPiece*> IndexStaging::Shares(PinnedRing& ring, absl::Span<const CopyPiece> shares) {
  GDN_ASSIGN_OR_RETURN(const char* placed, Place(ring, {BytesOf(shares.data(), shares.size())}));
  return reinterpret_cast<const CopyPiece*>(placed);
}

bool IndexStaging::AddPlaces(const ReplayableStep& step, std::string* key) const {
  const auto sequences = static_cast<size_t>(step.batch.sequences);
  const auto add = [&](Content content) {
    const char* place = FindProvided(content);
    key->append(reinterpret_cast<const char*>(&place), sizeof(place));
    return place != nullptr;
  };
  const auto add_values = [&](const auto* values) {
    key->push_back(values != nullptr ? 1 : 0);
    return values == nullptr || add({BytesOf(values, sequences)});
  };
  return add(ContentOf(step.batch)) && add_values(step.token_counts) && add_values(step.log_lengths) &&
         add_values(step.base_slots);
}

size_t IndexStaging::StagedBytes(int32_t sequences) {
  const auto count = static_cast<size_t>(sequences);
  return AlignUp((2 * count + 1) * sizeof(int32_t)) + AlignUp(count * sizeof(int64_t)) +
         2 * AlignUp(count * sizeof(int32_t)) + AlignUp(kMaxFoldArrays * count * sizeof(int32_t));
}

size_t IndexStaging::Provide(char* device, char* host, const StageInParams& params) {
  const auto sequences = static_cast<size_t>(params.batch.sequences);
  provided_.clear();
  provided_bytes_.clear();
  const auto provide = [&](Content content) {
    const size_t at = provided_bytes_.size();
    for (const absl::Span<const char> array : content) {
      provided_bytes_.insert(provided_bytes_.end(), array.begin(), array.end());
    }
    provided_.push_back({.at = at, .bytes = provided_bytes_.size() - at, .device = device + at});
    provided_bytes_.resize(AlignUp(provided_bytes_.size()));
  };
  provide(ContentOf(params.batch));
  if (params.token_counts != nullptr) provide({BytesOf(params.token_counts, sequences)});
  if (params.log_lengths != nullptr) provide({BytesOf(params.log_lengths, sequences)});
  if (params.base_slots != nullptr) provide({BytesOf(params.base_slots, sequences)});
  if (params.fold != nullptr && params.fold->count > 0) provide(ContentOf(*params.fold));
  std::memcpy(host, provided_bytes_.data(), provided_bytes_.size());
  return provided_bytes_.size();
}

}  // namespace gdn::gpu
