// Room on the device: which sessions have their states there, and which of them move down where others need the room.
//
// The least recently used session goes first; one that is pinned or locked is never moved.
// Thread safety: all methods from any thread; MakeRoom blocks, and is for one thread at a time (Residency's).
// Ownership: what the options name must outlive it.
//
//   room.Track(session);
//   GDN_ASSIGN_OR_RETURN(std::vector<SlotClaim> claims, room.MakeRoom({.dims = dims, .count = 36}, deadline));
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/session/session_lease.h"
#include "server/session/state_copier.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

// How long a call waits for others to let go of the states that are in the way of its own.
inline constexpr absl::Duration kRoomPatience = absl::Seconds(1);  // others wait behind it

struct DeviceRoomOptions {
  StateStore& store;
  TierStack& tiers;
  StateCopier& copier;
};

// Slots that a session needs.
struct RoomRequest {
  LayerDims dims;
  std::shared_ptr<StatePool> pool = nullptr;  // where they have to be; nullptr: in any
  int32_t count = 0;
};

class DeviceRoom {
 public:
  explicit DeviceRoom(const DeviceRoomOptions& options) : options_(options) {}
  DeviceRoom(const DeviceRoom&) = delete;
  DeviceRoom& operator=(const DeviceRoom&) = delete;

  // The session is on the device and may be moved from now on; nothing is to be known of it any more.
  void Track(const std::shared_ptr<Session>& session);
  void Forget(const Session& session);

  // RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where there is no room now.
  absl::StatusOr<std::vector<SlotClaim>> TryClaim(const RoomRequest& request);
  // Whether an error of TryClaim may be mended by moving sessions.
  bool CanMakeRoom(const absl::Status& error) const {
    return absl::IsResourceExhausted(error) && !options_.tiers.empty();
  }
  // Moves sessions down until there is room. Errors of TryClaim, and of copying a session out and parking it;
  // DEADLINE_EXCEEDED.
  absl::StatusOr<std::vector<SlotClaim>> MakeRoom(const RoomRequest& request, absl::Time deadline);

  int64_t budget_bytes() const { return options_.store.options().budget_bytes; }
  // Of a session that shares nothing, which is the least that any takes.
  int64_t BytesOf(const Session& session) const;

  int64_t sessions() const;  // on the device
  int64_t evictions() const { return evictions_; }
  int64_t evicted_bytes() const { return evicted_bytes_; }

 private:
  // Moves the least recently used session that can be moved. NOT_FOUND where there is none.
  absl::Status EvictOne();
  absl::Status Evict(SessionLease& lease);

  const DeviceRoomOptions options_;
  std::atomic<int64_t> evictions_{0}, evicted_bytes_{0};
  mutable absl::Mutex mu_;
  std::unordered_map<const Session*, std::weak_ptr<Session>> resident_ ABSL_GUARDED_BY(mu_);
};

// DEADLINE_EXCEEDED, of a call whose states were on their way.
absl::Status ReturnDeadlinePassed();

}  // namespace gdn
