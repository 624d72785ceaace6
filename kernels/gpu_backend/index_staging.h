// Index arrays of steps on the device. Each array is sent once; operators that ask for equal contents share the copy.
//
// All arrays of one operator are placed together and do not overlap. They stay valid until the next operator has run,
// because copies of later operators' arrays wait behind it in the stream.
// Thread safety: for the thread that issues operators. Ownership: owns device memory; the stream must outlive it.
//
//   GDN_ASSIGN_OR_RETURN(gpu::DeviceBatch batch, indices.Batch(ring, params.arrays()));
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

  // `arena_bytes` is the least size of the first allocation on the device, which is made when first needed. A step of
  // 256 sequences needs 2 to 6 KiB.
  explicit IndexStaging(const Stream& stream, size_t arena_bytes = kDefaultArenaBytes)
      : stream_(stream), least_arena_bytes_(arena_bytes) {}
  IndexStaging(const IndexStaging&) = delete;
  ~IndexStaging();

  // Allocates enough that operators with at most `bytes` of arrays (StagedBytes(sequences) for a batch) do not
  // allocate. May wait for the stream. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if the device has no room.
  absl::Status Reserve(size_t bytes);

  // Return the device addresses of an operator's arrays, valid until the next operator has run. Arrays that are not on
  // the device yet are sent through `ring`, so the caller may change its own at once. Arrays that are null stay null,
  // but base_slots becomes slots, and src_bases src. Errors are Reserve's, the ring's and RefuseToSend's.
  absl::StatusOr<DeviceBatch> Batch(PinnedRing& ring, const BatchArrays& arrays);
  absl::StatusOr<DeviceFold> Fold(PinnedRing& ring, const MaterializeStateParams& fold);

  // Returns the device address of the shares, as Batch does for index arrays.
  absl::StatusOr<const CopyPiece*> Shares(PinnedRing& ring, absl::Span<const CopyPiece> shares);

  // Call Provide for a launch that copies its arrays to the device itself. It writes them to `host`
  // (StagedBytes(sequences) bytes), for that copy to `device`, and returns the bytes written. Batch and Fold then
  // return addresses there for arrays with the same contents, until ForgetProvided or the next Provide; arrays that
  // have changed since are sent again.
  static size_t StagedBytes(int32_t sequences);
  size_t Provide(char* device, char* host, const StageInParams& params);
  void ForgetProvided() { provided_.clear(); }

  // Appends the device addresses of the step's arrays to `key`, as raw bytes. False if Provide has not been given one
  // of them; `key` may then have some.
  bool AddPlaces(const ReplayableStep& step, std::string* key) const;
  // If set, sending an array is an INTERNAL error: a recording would keep its present contents for ever.
  void RefuseToSend(bool refuse) { refuses_ = refuse; }

 private:
  // Arrays that lie one after another on the device, given as each array's host bytes.
  using Content = absl::Span<const absl::Span<const char>>;
  struct Provided {
    size_t at;  // offset in provided_bytes_
    size_t bytes;
    const char* device;
  };

  // An array that an operator needs, and where Place has put it on the device.
  struct Wanted {
    Content content;
    const char* at = nullptr;
  };

  // Sets `at` of all arrays of one operator to their addresses on the device, and sends those that are not there.
  absl::Status Place(PinnedRing& ring, absl::Span<Wanted> arrays);
  absl::StatusOr<const char*> PlaceOne(PinnedRing& ring, Content content);  // Place has made room
  absl::StatusOr<const char*> PlaceAlone(PinnedRing& ring, Content content);
  const char* FindProvided(Content content) const;  // address on the device; null if Provide was not given it

  const Stream stream_;
  const size_t least_arena_bytes_;
  char* arena_ = nullptr;  // contents are appended; when it is full, all are dropped
  size_t arena_bytes_ = 0;
  size_t next_ = 0;
  bool refuses_ = false;
  absl::flat_hash_map<std::string, size_t> placed_;  // content -> offset
  std::string sought_;                               // PlaceOne's key; a member to reuse its memory
  // A copy of the provided arrays, because the host's may be freed or changed before an operator asks.
  std::vector<char> provided_bytes_;
  std::vector<Provided> provided_;
};

}  // namespace gdn::gpu
