// Host memory for copies of slots and for tensors of calls, in blocks of a few sizes. Blocks are reused, because
// allocating memory costs more than the copy into it.
//
// Thread safety: safe from any thread. Ownership: a block returns to its HostBlockPool when it is destroyed. The pool's
// destructor waits for all blocks.
//
//   HostBlockPool blocks(backend, /*keep_bytes=*/int64_t{1} << 30);
//   GDN_ASSIGN_OR_RETURN(HostBlock block, blocks.Take(layout.slot_bytes()));
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"

namespace gdn {

class HostBlockPool;

class HostBlock {
 public:
  HostBlock() = default;
  HostBlock(HostBlock&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), buffer_(std::move(other.buffer_)) {}
  HostBlock& operator=(HostBlock other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~HostBlock();

  bool valid() const { return pool_ != nullptr; }
  float* floats() const { return buffer_.floats(); }
  char* chars() const { return static_cast<char*>(buffer_.data()); }
  size_t bytes() const { return buffer_.bytes(); }

 private:
  friend class HostBlockPool;
  HostBlock(HostBlockPool* pool, HostBuffer buffer) : pool_(pool), buffer_(std::move(buffer)) {}

  HostBlockPool* pool_ = nullptr;
  HostBuffer buffer_;
};

class HostBlockPool {
 public:
  // Keeps at most `keep_bytes` of unused blocks. Memory comes from the first of `backends` (at least one) that can
  // allocate it: after a device has failed its driver allocates no memory, but the other devices still need some.
  HostBlockPool(std::vector<Backend*> backends, int64_t keep_bytes)
      : backends_(std::move(backends)), keep_bytes_(keep_bytes) {}
  HostBlockPool(Backend& backend, int64_t keep_bytes) : HostBlockPool(std::vector{&backend}, keep_bytes) {}
  HostBlockPool(const HostBlockPool&) = delete;
  HostBlockPool& operator=(const HostBlockPool&) = delete;
  ~HostBlockPool();

  // Returns a block of exactly `bytes` bytes with undefined contents; may allocate. Errors of Backend::AllocateHost of
  // the last backend.
  absl::StatusOr<HostBlock> Take(size_t bytes);
  // Returns a block as Take does, of the next multiple of 64 KiB (of 16 MiB for 16 MiB and more), so that files of
  // similar sizes reuse blocks.
  absl::StatusOr<HostBlock> TakeForFile(size_t bytes);
  // Returns a block as Take does, of at least 4 KiB, and rounded up by at most an eighth or 4 KiB, whichever is more.
  // So calls of similar sizes reuse blocks.
  absl::StatusOr<HostBlock> TakeForCall(size_t bytes);

 private:
  friend class HostBlock;
  void Return(HostBuffer buffer);

  absl::StatusOr<HostBuffer> Make(size_t bytes);

  const std::vector<Backend*> backends_;
  const int64_t keep_bytes_;
  absl::Mutex mu_;
  int64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;                               // number of blocks in use
  std::map<size_t, std::vector<HostBuffer>> free_ ABSL_GUARDED_BY(mu_);  // unused blocks by size in bytes
};

// From now on fills every block of every pool with this byte when it is taken, so that a test sees if a caller reads
// what another caller left there. Negative: blocks are not filled (the default). Applies to the whole process.
void FillHostBlocksForTesting(int byte);

}  // namespace gdn
