#include "state_store/host_block_pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr size_t kFileStep = size_t{16} << 20;
constexpr size_t kSmallFileStep = size_t{64} << 10;
constexpr size_t kCallStep = size_t{4} << 10;

std::atomic<int> fill_for_testing = -1;

HostBuffer Filled(HostBuffer buffer) {
  const int byte = fill_for_testing.load(std::memory_order_relaxed);
  if (byte >= 0 && buffer.bytes() > 0) std::memset(buffer.data(), byte, buffer.bytes());
  return buffer;
}

}  // namespace

void FillHostBlocksForTesting(int byte) { fill_for_testing.store(byte, std::memory_order_relaxed); }

HostBlock::~HostBlock() {
  if (pool_ != nullptr) pool_->Return(std::move(buffer_));
}

HostBlockPool::~HostBlockPool() {
  absl::MutexLock lock(&mu_);
  const auto all_back = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return taken_ == 0; };
  mu_.Await(absl::Condition(&all_back));
}

absl::StatusOr<HostBuffer> HostBlockPool::Make(size_t bytes) {
  absl::StatusOr<HostBuffer> buffer = HostBuffer::Make(*backends_.front(), bytes);
  for (size_t i = 1; !buffer.ok() && i < backends_.size(); ++i) buffer = HostBuffer::Make(*backends_[i], bytes);
  return buffer;
}

absl::StatusOr<HostBlock> HostBlockPool::Take(size_t bytes) {
  HostBuffer kept;
  {
    absl::MutexLock lock(&mu_);
    ++taken_;
    if (const auto it = free_.find(bytes); it != free_.end() && !it->second.empty()) {
      kept = std::move(it->second.back());
      it->second.pop_back();
      kept_bytes_ -= static_cast<int64_t>(bytes);
    }
  }
  if (kept.data() != nullptr) return HostBlock(this, Filled(std::move(kept)));
  absl::StatusOr<HostBuffer> buffer = Make(bytes);
  if (buffer.ok()) return HostBlock(this, Filled(*std::move(buffer)));
  absl::MutexLock lock(&mu_);
  --taken_;
  return buffer.status();
}

absl::StatusOr<HostBlock> HostBlockPool::TakeForFile(size_t bytes) {
  const size_t step = bytes < kFileStep ? kSmallFileStep : kFileStep;
  return Take((bytes + step - 1) / step * step);
}

absl::StatusOr<HostBlock> HostBlockPool::TakeForCall(size_t bytes) {
  const size_t step = std::max(std::bit_floor(bytes) / 8, kCallStep);
  return Take(std::max((bytes + step - 1) / step, size_t{1}) * step);
}

void HostBlockPool::Return(HostBuffer buffer) {
  const auto bytes = static_cast<int64_t>(buffer.bytes());
  {
    absl::MutexLock lock(&mu_);
    if (kept_bytes_ + bytes <= keep_bytes_) {
      kept_bytes_ += bytes;
      free_[buffer.bytes()].push_back(std::move(buffer));
      --taken_;
      return;
    }
  }
  buffer = HostBuffer();  // frees the buffer outside the lock, because that is slow
  absl::MutexLock lock(&mu_);
  --taken_;
}

}  // namespace gdn
