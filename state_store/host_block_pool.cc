#include "state_store/host_block_pool.h"

#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr size_t kFileStep = size_t{16} << 20;
constexpr size_t kSmallFileStep = size_t{64} << 10;

}  // namespace

HostBlock::~HostBlock() {
  if (pool_ != nullptr) pool_->Return(std::move(buffer_));
}

absl::StatusOr<HostBlock> HostBlockPool::Take(size_t bytes) {
  {
    absl::MutexLock lock(&mu_);
    if (const auto it = free_.find(bytes); it != free_.end() && !it->second.empty()) {
      HostBuffer buffer = std::move(it->second.back());
      it->second.pop_back();
      kept_bytes_ -= static_cast<int64_t>(bytes);
      return HostBlock(this, std::move(buffer));
    }
  }
  GDN_ASSIGN_OR_RETURN(HostBuffer buffer, HostBuffer::Make(backend_, bytes));
  return HostBlock(this, std::move(buffer));
}

absl::StatusOr<HostBlock> HostBlockPool::TakeForFile(size_t bytes) {
  const size_t step = bytes < kFileStep ? kSmallFileStep : kFileStep;
  return Take((bytes + step - 1) / step * step);
}

void HostBlockPool::Return(HostBuffer buffer) {
  absl::MutexLock lock(&mu_);
  const auto bytes = static_cast<int64_t>(buffer.bytes());
  if (kept_bytes_ + bytes > keep_bytes_) return;  // freed once the lock is let go: `buffer` outlives it
  kept_bytes_ += bytes;
  free_[buffer.bytes()].push_back(std::move(buffer));
}

}  // namespace gdn
