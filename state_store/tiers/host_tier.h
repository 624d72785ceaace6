// The tier in host memory: images are kept as they are, so that a state goes in and out by passing a pointer.
//
// Thread safety: safe from any thread; no call blocks. Ownership: shares the images.
//
//   HostTier host(/*limit_bytes=*/int64_t{64} << 30);
//   GDN_RETURN_IF_ERROR(host.Store(key, image).status());
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class HostTier final : public StateTier {
 public:
  // The images' bytes() never exceed `limit_bytes` together; 0: no limit.
  explicit HostTier(int64_t limit_bytes) : limit_bytes_(limit_bytes) { usage_.limit_bytes = limit_bytes; }
  // Called after a Store, for what lies in the memory that states have left free. Before the first one.
  void SetOnStored(std::function<void()> on_stored) { on_stored_ = std::move(on_stored); }
  // What the states leave of the limit; the largest number without one.
  int64_t left_bytes() const;

  std::string_view name() const override { return "host"; }
  bool durable() const override { return false; }

  // INVALID_ARGUMENT for an image that leaves bases out: nothing here has them.
  absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) override;
  absl::StatusOr<SessionImagePtr> Load(const StateKey& key) override;
  absl::Status Erase(const StateKey& key, bool all) override;
  absl::StatusOr<std::vector<StoredSession>> List() override { return std::vector<StoredSession>(); }
  TierUsage usage() const override;

 private:
  struct Entry {
    SessionImagePtr image;
    int64_t bytes = 0;
  };

  absl::StatusOr<StoreResult> Put(const StateKey& key, const SessionImagePtr& image);

  const int64_t limit_bytes_;
  std::function<void()> on_stored_;
  mutable absl::Mutex mu_;
  std::map<StateKey, Entry> entries_ ABSL_GUARDED_BY(mu_);
  TierUsage usage_ ABSL_GUARDED_BY(mu_);  // but for name and sessions
};

}  // namespace gdn
