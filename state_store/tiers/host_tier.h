// The tier in host memory. It keeps images as they are, so storing and loading only pass a pointer.
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
  // The sum of the images' bytes() never exceeds `limit_bytes`; 0: no limit.
  explicit HostTier(int64_t limit_bytes) : limit_bytes_(limit_bytes) { usage_.limit_bytes = limit_bytes; }
  // Sets a function that is called after each successful Store, on its thread and outside the mutex. A cache that uses
  // the rest of the limit shrinks then. Call before the first Store.
  void SetOnStored(std::function<void()> on_stored) { on_stored_ = std::move(on_stored); }
  // Returns the bytes that are left of the limit; INT64_MAX if there is no limit.
  int64_t left_bytes() const;

  std::string_view name() const override { return "host"; }
  bool durable() const override { return false; }

  // Keeps the image in memory, without a copy. INVALID_ARGUMENT (INTERNAL) for an image that leaves bases out, because
  // this tier has no other copy of them. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) beyond the limit.
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
  TierUsage usage_ ABSL_GUARDED_BY(mu_);  // name and sessions are set in usage()
};

}  // namespace gdn
