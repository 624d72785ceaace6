// Room on the device: which sessions have their states there, and which of them move down where others need the room.
//
// The least recently used session goes first; one that is pinned or locked is never moved. One that no lower tier takes
// (it is too large, its folder cannot be written) lets the next one go, and for a while others are tried before it.
// Thread safety: all methods from any thread; MakeRoom blocks, and is for one thread at a time (Residency's).
// Ownership: what the options name must outlive it.
//
//   room.Track(session);
//   GDN_ASSIGN_OR_RETURN(std::vector<SlotClaim> claims, room.MakeRoom({.dims = dims, .count = 36}, deadline));
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
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
  const SteadyClock& clock = SteadyClock::Real();
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
  // Moves sessions down until there is room. Errors of TryClaim; UNAVAILABLE (TIER_UNAVAILABLE: tier) where a tier that
  // is needed cannot be written, DEVICE_FAILED, DEADLINE_EXCEEDED. None says whose session could not be moved.
  absl::StatusOr<std::vector<SlotClaim>> MakeRoom(const RoomRequest& request, SteadyTime deadline);

  int64_t budget_bytes() const { return options_.store.options().budget_bytes; }
  // Of a session that shares nothing, which is the least that any takes.
  int64_t BytesOf(const Session& session) const;

  int64_t sessions() const;  // on the device
  int64_t evictions() const { return evictions_; }
  int64_t evicted_bytes() const { return evicted_bytes_; }

 private:
  struct Resident {
    std::weak_ptr<Session> session;
    SteadyTime stuck_until = SteadyTime::InfinitePast();  // it could not be moved, and until then goes last
    absl::Duration stuck_for = absl::ZeroDuration();
  };
  // What one MakeRoom has found out.
  struct Attempt {
    std::unordered_set<const Session*> stuck;                 // could not be moved
    int64_t too_large = std::numeric_limits<int64_t>::max();  // nothing below has room for so many bytes
    absl::Status error;                                       // why, for the caller
  };
  // Moves the least recently used session that can be moved. NOT_FOUND where none can be now, and the device's error.
  absl::Status EvictOne(Attempt& attempt);
  absl::Status Evict(SessionLease& lease);
  using Candidate = std::tuple<bool, SteadyTime, std::shared_ptr<Session>>;  // whether it is stuck, its last use
  std::vector<Candidate> Candidates(const Attempt& attempt);
  void NoteStuck(const Session& session, const absl::Status& why, Attempt& attempt);

  const DeviceRoomOptions options_;
  std::atomic<int64_t> evictions_{0}, evicted_bytes_{0};
  mutable absl::Mutex mu_;
  std::unordered_map<const Session*, Resident> resident_ ABSL_GUARDED_BY(mu_);
};

// DEADLINE_EXCEEDED, of a call whose states were on their way.
absl::Status ReturnDeadlinePassed();

}  // namespace gdn
