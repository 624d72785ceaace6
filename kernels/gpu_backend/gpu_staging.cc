#include "kernels/gpu_backend/gpu_staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace gdn::gpu {
namespace {

constexpr size_t kPieces = 4;  // of a full ring: the host fills one while another travels
constexpr size_t kPieceAlignment = 256;

}  // namespace

absl::StatusOr<PinnedRing> PinnedRing::Make(const Stream& stream, size_t bytes) {
  PinnedRing ring(stream, bytes);
  GDN_ASSIGN_OR_RETURN(void* data, PinnedMalloc(bytes));
  ring.data_ = static_cast<char*>(data);
  return ring;
}

PinnedRing::PinnedRing(PinnedRing&& other) noexcept
    : stream_(other.stream_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)), next_(other.next_) {}

PinnedRing::~PinnedRing() {
  if (data_ == nullptr) return;
  static_cast<void>(SynchronizeStream(stream_));  // a failure is reported by whoever works next
  PinnedFree(data_);
}

absl::StatusOr<char*> PinnedRing::Take(size_t bytes) {
  const size_t taken = (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  if (next_ + taken > bytes_) {
    // Once round: what was taken before has to have been read.
    GDN_RETURN_IF_ERROR(SynchronizeStream(stream_));
    next_ = 0;
  }
  char* part = data_ + next_;
  next_ += taken;
  return part;
}

absl::Status PinnedRing::CopyIn(void* device, const void* host, size_t bytes) {
  const char* from = static_cast<const char*>(host);
  char* to = static_cast<char*>(device);
  for (size_t at = 0; at < bytes; at += bytes_ / kPieces) {
    const size_t piece = std::min(bytes - at, bytes_ / kPieces);
    GDN_ASSIGN_OR_RETURN(char* part, Take(piece));
    std::memcpy(part, from + at, piece);
    GDN_RETURN_IF_ERROR(CopyToDevice(to + at, part, piece, stream_));
  }
  return absl::OkStatus();
}

absl::Status PinnedRing::CopyOut(void* host, const void* device, size_t bytes) {
  const char* from = static_cast<const char*>(device);
  char* to = static_cast<char*>(host);
  for (size_t at = 0; at < bytes; at += bytes_ / kPieces) {
    const size_t piece = std::min(bytes - at, bytes_ / kPieces);
    GDN_ASSIGN_OR_RETURN(char* part, Take(piece));
    GDN_RETURN_IF_ERROR(CopyToHost(part, from + at, piece, stream_));
    GDN_RETURN_IF_ERROR(SynchronizeStream(stream_));
    std::memcpy(to + at, part, piece);
  }
  return absl::OkStatus();
}

}  // namespace gdn::gpu
