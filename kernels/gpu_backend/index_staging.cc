#include "kernels/gpu_backend/index_staging.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "base/status_macros.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {
namespace {

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

// Token counts, log lengths and base slots of BatchArrays, StageInParams or ReplayableStep.
template <typename Arrays>
std::array<absl::Span<const char>, 3> ValuesOf(const Arrays& arrays) {
  const auto sequences = static_cast<size_t>(arrays.batch.sequences);
  return {BytesOf(arrays.token_counts, sequences), BytesOf(arrays.log_lengths, sequences),
          BytesOf(arrays.base_slots, sequences)};
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

absl::Status IndexStaging::Reserve(size_t bytes) {
  if (bytes <= arena_bytes_) return absl::OkStatus();
  const size_t grown = std::max(4 * bytes, least_arena_bytes_);
  GDN_ASSIGN_OR_RETURN(void* data, DeviceMalloc(grown));
  // Launches in flight may still read the old arena.
  if (const absl::Status status = SynchronizeStream(stream_); !status.ok()) {
    DeviceFree(data);
    return status;
  }
  if (arena_ != nullptr) DeviceFree(arena_);
  arena_ = static_cast<char*>(data);
  arena_bytes_ = grown;
  next_ = 0;
  placed_.clear();
  return absl::OkStatus();
}

absl::Status IndexStaging::Place(PinnedRing& ring, absl::Span<Wanted> arrays) {
  size_t bytes = 0;
  for (Wanted& array : arrays) {
    array.at = FindProvided(array.content);
    if (array.at == nullptr) bytes += AlignUp(SizeOf(array.content));
  }
  if (bytes == 0) return absl::OkStatus();
  if (refuses_) return absl::InternalError("an index array that the launch did not bring cannot be recorded");
  GDN_RETURN_IF_ERROR(Reserve(bytes));
  if (next_ + bytes > arena_bytes_) {
    // Before the first of the operator's arrays is looked for: one that is found must not be overwritten by another.
    // Operators before this one have read theirs when the copies run, which are in the stream's order.
    placed_.clear();
    next_ = 0;
  }
  for (Wanted& array : arrays) {
    if (array.at != nullptr) continue;
    GDN_ASSIGN_OR_RETURN(array.at, PlaceOne(ring, array.content));
  }
  return absl::OkStatus();
}

absl::StatusOr<const char*> IndexStaging::PlaceOne(PinnedRing& ring, Content content) {
  sought_.clear();
  for (const absl::Span<const char> array : content) sought_.append(array.data(), array.size());
  if (const auto found = placed_.find(sought_); found != placed_.end()) return arena_ + found->second;
  const size_t offset = next_;
  GDN_RETURN_IF_ERROR(ring.CopyIn(arena_ + offset, sought_.data(), sought_.size()));
  next_ += AlignUp(sought_.size());
  placed_.emplace(sought_, offset);
  return arena_ + offset;
}

absl::StatusOr<const char*> IndexStaging::PlaceAlone(PinnedRing& ring, Content content) {
  Wanted wanted{.content = content};
  GDN_RETURN_IF_ERROR(Place(ring, {&wanted, 1}));
  return wanted.at;
}

absl::StatusOr<DeviceBatch> IndexStaging::Batch(PinnedRing& ring, const BatchArrays& arrays) {
  const PackedBatch& batch = arrays.batch;
  const auto sequences = static_cast<size_t>(batch.sequences);
  DeviceBatch device;
  device.sequences = batch.sequences;
  device.tokens = batch.tokens();
  device.max_length = batch.max_length();

  const std::array<absl::Span<const char>, 2> indices = ContentOf(batch);
  const std::array<absl::Span<const char>, 3> values = ValuesOf(arrays);
  absl::InlinedVector<Wanted, 1 + values.size()> wanted;
  wanted.push_back({.content = indices});
  for (const absl::Span<const char>& array : values) {
    if (array.data() != nullptr) wanted.push_back({.content = {&array, 1}});
  }
  GDN_RETURN_IF_ERROR(Place(ring, absl::MakeSpan(wanted)));

  device.cu_seqlens = reinterpret_cast<const int32_t*>(wanted.front().at);
  device.slots = device.base_slots = device.cu_seqlens + sequences + 1;
  const Wanted* next = wanted.data() + 1;
  const auto take = [&next](auto* given, auto** placed) {
    if (given != nullptr) *placed = reinterpret_cast<decltype(given)>((next++)->at);
  };
  take(arrays.token_counts, &device.token_counts);
  take(arrays.log_lengths, &device.log_lengths);
  take(arrays.base_slots, &device.base_slots);
  return device;
}

absl::StatusOr<DeviceFold> IndexStaging::Fold(PinnedRing& ring, const MaterializeStateParams& fold) {
  GDN_ASSIGN_OR_RETURN(const char* placed, PlaceAlone(ring, ContentOf(fold)));
  const auto* const src = reinterpret_cast<const int32_t*>(placed);
  const int64_t count = fold.count;
  return DeviceFold{.src = src,
                    .dst = src + count,
                    .log_lengths = src + 2 * count,
                    .src_bases = fold.src_bases != nullptr ? src + 3 * count : src};
}

absl::StatusOr<const CopyPiece*> IndexStaging::Shares(PinnedRing& ring, absl::Span<const CopyPiece> shares) {
  const absl::Span<const char> content = BytesOf(shares.data(), shares.size());
  GDN_ASSIGN_OR_RETURN(const char* placed, PlaceAlone(ring, {&content, 1}));
  return reinterpret_cast<const CopyPiece*>(placed);
}

bool IndexStaging::AddPlaces(const ReplayableStep& step, std::string* key) const {
  const auto add = [&](Content content) {
    const char* place = FindProvided(content);
    key->append(reinterpret_cast<const char*>(&place), sizeof(place));
    return place != nullptr;
  };
  if (!add(ContentOf(step.batch))) return false;
  for (const absl::Span<const char>& values : ValuesOf(step)) {
    key->push_back(values.data() != nullptr ? 1 : 0);
    if (values.data() != nullptr && !add({&values, 1})) return false;
  }
  return true;
}

size_t IndexStaging::StagedBytes(int32_t sequences) {
  const auto count = static_cast<size_t>(sequences);
  return AlignUp((2 * count + 1) * sizeof(int32_t)) + AlignUp(count * sizeof(int64_t)) +
         2 * AlignUp(count * sizeof(int32_t)) + AlignUp(kMaxFoldArrays * count * sizeof(int32_t));
}

size_t IndexStaging::Provide(char* device, char* host, const StageInParams& params) {
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
  for (const absl::Span<const char>& values : ValuesOf(params)) {
    if (values.data() != nullptr) provide({&values, 1});
  }
  if (params.fold != nullptr && params.fold->count > 0) provide(ContentOf(*params.fold));
  std::memcpy(host, provided_bytes_.data(), provided_bytes_.size());
  return provided_bytes_.size();
}

}  // namespace gdn::gpu
