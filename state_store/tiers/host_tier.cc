#include "state_store/tiers/host_tier.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {

absl::StatusOr<StoreResult> HostTier::Store(const StateKey& key, const SessionImagePtr& image) {
  for (const LayerImage& layer : image->layers) {
    if (layer.has_base) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInternal,
                     StrCat("the image of ", key.ToString(), " lacks the base state of layer ", layer.layer,
                            ", which host memory has no copy of; store an image with all base states"),
                     {{"tier", "host"}});
  }
  absl::StatusOr<StoreResult> stored = Put(key, image);
  if (stored.ok() && on_stored_) on_stored_();
  return stored;
}

absl::StatusOr<StoreResult> HostTier::Put(const StateKey& key, const SessionImagePtr& image) {
  const int64_t bytes = image->bytes();
  SessionImagePtr replaced;  // freed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  const int64_t before = it == entries_.end() ? 0 : it->second.bytes;
  if (usage_.limit_bytes > 0 && usage_.used_bytes - before + bytes > usage_.limit_bytes) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     StrCat("the state of ", key.ToString(), " has ", bytes, " bytes, and host memory holds ",
                            usage_.used_bytes - before, " of its limit of ", usage_.limit_bytes),
                     {{"tier", "host"}});
  }
  Entry& entry = it == entries_.end() ? entries_[key] : it->second;
  replaced = std::exchange(entry.image, image);
  entry.bytes = bytes;
  usage_.used_bytes += bytes - before;
  ++usage_.stores;
  usage_.stored_bytes += bytes;
  return StoreResult{.written_bytes = bytes, .held_bytes = bytes};
}

absl::StatusOr<SessionImagePtr> HostTier::Load(const StateKey& key) {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSessionNotFound,
                     StrCat("host memory has no state of ", key.ToString()), {{"tier", "host"}});
  }
  ++usage_.loads;
  usage_.loaded_bytes += it->second.bytes;
  return it->second.image;
}

absl::Status HostTier::Erase(const StateKey& key, bool all) {
  std::vector<SessionImagePtr> erased;  // freed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto [begin, end] = all ? SessionRange(entries_, key) : entries_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    erased.push_back(std::move(it->second.image));
    usage_.used_bytes -= it->second.bytes;
  }
  entries_.erase(begin, end);
  return absl::OkStatus();
}

int64_t HostTier::left_bytes() const {
  if (limit_bytes_ == 0) return std::numeric_limits<int64_t>::max();
  absl::MutexLock lock(&mu_);
  return std::max<int64_t>(0, limit_bytes_ - usage_.used_bytes);
}

TierUsage HostTier::usage() const {
  absl::MutexLock lock(&mu_);
  TierUsage usage = usage_;
  usage.name = name();
  usage.sessions = static_cast<int64_t>(entries_.size());
  return usage;
}

}  // namespace gdn
