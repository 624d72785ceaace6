// The index arrays of steps on the device, sent once: operators that ask for what is already there get it.
//
// The arrays of one operator are placed together and never overlap. They stay as they are until the operator that is
// issued next has run: the copies of later operators' arrays wait behind it in the stream.
// Thread safety: for the thread that issues operators. Ownership: owns device memory; the stream must outlive it.
//
//   GDN_ASSIGN_OR_RETURN(gpu::DeviceBatch batch, indices.Batch(ring, params.batch, params.token_counts, nullptr));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu_backend/gpu_staging.h"

namespace gdn::gpu {

class IndexStaging {
 public:
  static constexpr size_t kDefaultArenaBytes = size_t{1} << 20;

  // `arena_bytes`: device memory of the first allocation. A step of 256 sequences needs 2 to 6 KiB.
  explicit IndexStaging(const Stream& stream, size_t arena_bytes = kDefaultArenaBytes)
      : stream_(stream), least_arena_bytes_(arena_bytes) {}
  IndexStaging(const IndexStaging&) = delete;
  ~IndexStaging();

  // Allocates what operators of up to `bytes` of arrays need (StagedBytes(sequences) for a batch), so that none of them
  // allocates. May wait for the stream. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where the device has no room.
  absl::Status Reserve(size_t bytes);

  // All but the batch may be null.
  absl::StatusOr<DeviceBatch> Batch(PinnedRing& ring, const PackedBatch& batch, const int64_t* token_counts,
                                    const int32_t* log_lengths, const int32_t* base_slots = nullptr);

  // src, dst, log_lengths and, where they are given, src_bases, end to end.
  absl::StatusOr<const int32_t*> Fold(PinnedRing& ring, const MaterializeStateParams& fold);

  absl::StatusOr<const CopyPiece*> Shares(PinnedRing& ring, absl::Span<const CopyPiece> shares);

  // For a launch that brings its arrays in a copy of its own: writes what Batch() and Fold() would send to `host`,
  // which has StagedBytes(sequences), and takes it to be at `device` until ForgetProvided or the next Provide. It is
  // found by what it holds, so arrays that have changed since are sent. Returns the bytes.
  static size_t StagedBytes(int32_t sequences);
  size_t Provide(char* device, char* host, const StageInParams& params);
  void ForgetProvided() { provided_.clear(); }

  // Adds where the step's arrays are to `key`. False where a launch did not bring one of them.
  bool AddPlaces(const ReplayableStep& step, std::string* key) const;
  // Whether arrays that no launch brought are an error: a recording would have what they hold now, for good.
  void RefuseToSend(bool refuse) { refuses_ = refuse; }

 private:
  // Arrays that lie end to end on the device, as the host's bytes of each.
  using Content = absl::Span<const absl::Span<const char>>;
  struct Provided {
    size_t at;  // in provided_bytes_
    size_t bytes;
    const char* device;
  };

  // An array of an operator, and where Place has put it.
  struct Wanted {
    Content content;
    const char* at = nullptr;
  };

  // Finds all arrays of one operator on the device, uploading those that are not there.
  absl::Status Place(PinnedRing& ring, absl::Span<Wanted> arrays);
  absl::StatusOr<const char*> PlaceOne(PinnedRing& ring, Content content);  // there is room
  absl::StatusOr<const char*> PlaceAlone(PinnedRing& ring, Content content);
  const char* FindProvided(Content content) const;  // null: it is not

  const Stream stream_;
  const size_t least_arena_bytes_;
  char* arena_ = nullptr;  // contents lie one behind another; when it is full, all of them are given up
  size_t arena_bytes_ = 0;
  size_t next_ = 0;
  bool refuses_ = false;
  absl::flat_hash_map<std::string, size_t> placed_;  // content -> offset
  std::string sought_;                               // what PlaceOne looks for; kept for its memory
  // A copy of what was provided: the host's own may be gone or changed when an operator asks.
  std::vector<char> provided_bytes_;
  std::vector<Provided> provided_;
};

}  // namespace gdn::gpu
