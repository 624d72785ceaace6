// Room on the devices: which sessions have their states where, and which of them move down for others.
//
// A session's states are on one device, with those of its affinity where that one has room for them, else where there
// is most. One that has left goes wherever there is room when it comes back. What is on a device that has failed stays
// there, and takes no part.
// An account that is at its quota (kDeviceBytes) makes room of its own: its own least recently used session goes.
// Of the account that holds most for its share of the device, where one holds more than that, the least recently used
// session goes first; one that is pinned or locked is never moved. One that no lower tier takes (it is too large, its
// folder cannot be written) lets the next one go, and for a while others are tried before it.
// Thread safety: all methods from any thread, but those that make room (Advance, EvictAhead), which block on tiers and
// are for one thread at a time (Residency's). Ownership: what the options name must outlive it.
//
//   room.Track(session);
//   RoomEffort effort;
//   RoomClaims claims;
//   GDN_ASSIGN_OR_RETURN(const RoomProgress made, room.Advance({.dims = dims, .count = 36}, effort, &claims));
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "base/steady_clock.h"
#include "server/admission/byte_ledger.h"
#include "server/session/device_residents.h"
#include "server/session/session_lease.h"
#include "server/session/state_copier.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct DeviceRoomOptions {
  std::vector<StateStore*> stores;  // by StatePool::device, as the copier's devices
  TierStack& tiers;
  StateCopier& copier;
  ByteLedger& ledger;
  const SteadyClock& clock = SteadyClock::Real();
};

// Slots that a session needs.
struct RoomRequest {
  LayerDims dims;
  std::shared_ptr<StatePool> pool = nullptr;  // where they have to be; nullptr: in any
  int32_t count = 0;
  std::string affinity = {};  // of DeviceRoom::AffinityOf
  // What the sessions that get them are charged for there, and whose they are; nullptr: nobody's.
  ByteAccountPtr account = nullptr;
  int64_t bytes = 0;
};

struct RoomClaims {
  std::vector<SlotClaim> slots;
  ByteCharge charge;  // of the pool kDevice, for Track

  bool empty() const { return slots.empty(); }
  void clear() {
    slots.clear();
    charge.Release();
  }
};

// What the steps of one call towards its room have found out.
struct RoomEffort {
  std::unordered_set<const Session*> stuck;                 // could not be moved
  int64_t too_large = std::numeric_limits<int64_t>::max();  // nothing below has room for so many bytes
  absl::Status refused;                                     // why something was not moved, for the caller
  absl::Status no_room;                                     // of the last TryClaim
  int32_t device = kAnyDevice;                              // where room is being made
  const ByteAccount* account = nullptr;                     // whose sessions may be moved; nullptr: anybody's

  static constexpr int32_t kAnyDevice = -1;

  // Why the call gives up.
  const absl::Status& error() const { return refused.ok() ? no_room : refused; }
};

enum class RoomProgress {
  kMade,          // there was room
  kMoved,         // one session has left the device: go on
  kNothingMoves,  // none can be moved now; calls that run end soon
};

class DeviceRoom {
 public:
  explicit DeviceRoom(const DeviceRoomOptions& options)
      : options_(options), residents_(options.ledger, options.stores.size()) {}
  DeviceRoom(const DeviceRoom&) = delete;
  DeviceRoom& operator=(const DeviceRoom&) = delete;

  // The session is on the device and may be moved from now on; nothing is to be known of it any more. `charge`: what
  // its claims came with; without one it is charged now, whatever its quota.
  void Track(const std::shared_ptr<Session>& session, int32_t device = 0, ByteCharge charge = {});
  void Forget(const Session& session) { residents_.Remove(session); }

  // RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where there is no room now, (QUOTA_EXCEEDED) where the account has its
  // part; DEVICE_FAILED where no device is left.
  absl::StatusOr<RoomClaims> TryClaim(const RoomRequest& request);
  // A call ends with this error of TryClaim or Advance.
  void CountRefusal(const absl::Status& error) const;
  // Whether an error of TryClaim may be mended by moving sessions.
  bool CanMakeRoom(const absl::Status& error) const {
    return absl::IsResourceExhausted(error) && !options_.tiers.empty();
  }
  // One step towards room: claims it where there is some, or else moves one session down. Errors of TryClaim;
  // UNAVAILABLE (TIER_UNAVAILABLE: tier) where a tier that is needed cannot be written, DEVICE_FAILED. None says whose
  // session could not be moved.
  absl::StatusOr<RoomProgress> Advance(const RoomRequest& request, RoomEffort& effort, RoomClaims* claims);
  // Sends the session of the lease down to the tier `fastest` of the stack or a slower one, from the device or from a
  // faster tier; one that is there stays. Errors of TierStack::Park and TierStack::Fetch, DEVICE_FAILED; the session is
  // where it was then. Any thread.
  absl::Status SendDown(SessionLease& lease, size_t fastest);
  // Whether so little is left on all devices that sessions which nobody uses had better go before somebody needs it.
  bool WantsAhead() const;
  // Moves one that was not used for a while. False where there is none.
  bool EvictAhead();

  int32_t devices() const { return static_cast<int32_t>(options_.stores.size()); }
  const StateStore& store(int32_t device) const { return *options_.stores[static_cast<size_t>(device)]; }
  int64_t budget_bytes() const;  // of all devices
  int64_t used_bytes() const;
  int64_t working_budget_bytes() const;  // of those that work
  // Of a session that shares nothing, which is the least that any takes.
  int64_t BytesOf(const SessionSpec& spec) const;
  int64_t BytesOf(const Session& session) const { return BytesOf(session.spec()); }
  // For a copy of the session's states on its way to the device or from it, which nobody waits to make.
  ByteCharge ChargeCopy(const Session& session) const {
    return options_.ledger.Charge(BytePool::kCopies, session.account(), BytesOf(session));
  }

  int64_t sessions() const { return residents_.sessions(); }  // on the devices
  int64_t sessions(int32_t device) const { return residents_.held(device).sessions; }
  int64_t looks() const { return residents_.looks(); }  // DeviceResidents::looks
  // What RoomRequest wants of a session; "" where it goes by itself.
  static std::string AffinityOf(const Session& session);
  // What the account may have on the devices; kNoQuota.
  static int64_t QuotaOf(const ByteAccount& account) { return account.quota(Quota::kDeviceBytes); }
  int64_t evictions() const { return evictions_; }
  int64_t evicted_bytes() const { return evicted_bytes_; }

 private:
  bool Works(int32_t device) const { return options_.copier.CheckDevice(device).ok(); }
  absl::StatusOr<std::vector<SlotClaim>> ClaimSlots(const RoomRequest& request);
  absl::StatusOr<RoomProgress> MakeOwnRoom(const absl::Status& refused, const RoomRequest& request, RoomEffort& effort);
  // Those that work and may be taken for the request, the best first.
  std::vector<int32_t> PlacesFor(const RoomRequest& request) const;
  // The most that a working one of these has for all its sessions.
  int64_t LargestBudget(const std::vector<int32_t>& devices) const;
  // Of what is on the devices that room may be made on.
  DeviceResidents::Held HeldFor(const RoomEffort& effort) const;
  // By device: whether room may be made on it.
  std::vector<bool> DevicesFor(const RoomEffort& effort) const;
  // Moves the first that can be moved, of those not used since. NOT_FOUND where none can be now, and the device's
  // error.
  absl::Status EvictOne(RoomEffort& effort, SteadyTime unused_since = SteadyTime::InfiniteFuture());
  absl::Status Evict(SessionLease& lease, size_t fastest = 0);
  void NoteStuck(const Session& session, const absl::Status& why, RoomEffort& effort);

  const DeviceRoomOptions options_;
  std::atomic<int64_t> evictions_{0}, evicted_bytes_{0};
  SteadyTime nothing_moves_until_;  // of the moving thread: all are pinned
  DeviceResidents residents_;
};

}  // namespace gdn
