// Manages room on the devices: which device has a session's states, and which sessions move down to make room.
//
// All states of a session are on one device: that of other sessions with its affinity if there is room, else the device
// with the most room. A session that has left may come back to another device. Sessions on a failed device stay there,
// and that device is not used for room. The victim is the least recently used session of the account that is furthest
// over its share of the device. If no account is over its share, the victim is the least recently used session of all.
// For an account over its share, sessions of accounts within their share are not moved. If an account is at its quota
// (kDeviceBytes), the victim is its own least recently used session. A pinned or locked session is never moved. If no
// lower tier takes a session (it is too large, or its folder cannot be written), the next one is tried, and for a while
// others are tried before it. A snapshot that no tier has room for is ended
// (DropSnapshotsBy).
// Thread safety: all methods from any thread, except Advance and EvictAhead, which block on tiers and are called by one
// thread at a time (Residency's). Ownership: the objects in the options must outlive it.
//
//   room.Track(session);
//   RoomEffort effort;
//   RoomClaims claims;
//   GDN_ASSIGN_OR_RETURN(const RoomProgress made, room.Advance({.dims = dims, .count = 36}, effort, &claims));
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/task/executor.h"
#include "base/threads/steady_clock.h"
#include "base/threads/task_queue.h"
#include "server/admission/byte_ledger.h"
#include "server/session/room/device_residents.h"
#include "server/session/room/state_copier.h"
#include "server/session/session_lease.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct DeviceRoomOptions {
  std::vector<StateStore*> stores;  // by StatePool::device, as the copier's devices
  TierStack& tiers;
  StateCopier& copier;
  ByteLedger& ledger;
  const SteadyClock& clock = SteadyClock::Real();
};

// Room that is needed on a device.
struct RoomRequest {
  LayerDims dims;
  std::shared_ptr<StatePool> pool = nullptr;  // pool that the slots must be in; nullptr: any
  int32_t count = 0;                          // slots
  std::string affinity = {};  // prefers the device of the sessions with this key (AffinityOf); "": no preference
  // Account to charge for the room, and its bytes; nullptr: no charge.
  ByteAccountPtr account = nullptr;
  int64_t bytes = 0;
};

struct RoomClaims {
  std::vector<SlotClaim> slots;
  ByteCharge charge;  // charge in the pool kDevice, to pass to Track

  bool empty() const { return slots.empty(); }
  void clear() {
    slots.clear();
    charge.Release();
  }
};

// Findings that a request keeps between its calls of Advance.
struct RoomEffort {
  std::unordered_set<const Session*> stuck;  // sessions that could not be moved
  // The lower tiers have no room for a session of so many bytes or more; the maximum: not known.
  int64_t too_large = std::numeric_limits<int64_t>::max();
  absl::Status refused;         // why a session was not moved, as the caller is told
  absl::Status no_room;         // error of the last TryClaim
  int32_t device = kAnyDevice;  // device on which room is being made
  // Only this account's sessions may be moved; nullptr: any account's.
  const ByteAccount* account = nullptr;
  // The account that gets the room; nullptr: none in particular.
  const ByteAccount* wanted_by = nullptr;

  static constexpr int32_t kAnyDevice = -1;

  // Returns the error to end the call with if it gives up.
  const absl::Status& error() const { return refused.ok() ? no_room : refused; }
};

enum class RoomProgress {
  kMade,          // the room was claimed
  kMoved,         // one session has left the device: call again
  kNothingMoves,  // no session can be moved now; try again soon, when running calls have ended
};

class DeviceRoom {
 public:
  explicit DeviceRoom(const DeviceRoomOptions& options)
      : options_(options), residents_(options.ledger, options.stores.size()) {}
  DeviceRoom(const DeviceRoom&) = delete;
  DeviceRoom& operator=(const DeviceRoom&) = delete;

  // Track records that the session's states are on the device, so that they may be moved. `charge`: the charge that
  // came with its claims (RoomClaims); if invalid, the account is charged now, whatever its quota. Forget removes the
  // session and its charge; does nothing if it is not there.
  void Track(const std::shared_ptr<Session>& session, int32_t device = 0, ByteCharge charge = {});
  void Forget(const Session& session) { residents_.Remove(session); }

  // Claims room without moving sessions or waiting. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if there is no room
  // now, (QUOTA_EXCEEDED) if the account is at its quota; UNAVAILABLE (DEVICE_FAILED) if no device works; errors of
  // StateStore::Reserve.
  absl::StatusOr<RoomClaims> TryClaim(const RoomRequest& request);
  // Counts a call that ends with this error of TryClaim or Advance in ByteLedger::refusals, if it is QUOTA_EXCEEDED.
  void CountRefusal(const absl::Status& error) const;
  // True if moving sessions may help against this error of TryClaim.
  bool CanMakeRoom(const absl::Status& error) const {
    return absl::IsResourceExhausted(error) && (!options_.tiers.empty() || MayDropSnapshots());
  }
  // Sets how a locked snapshot is ended if no tier has room for it: `drop` ends it, and its error keeps it; `any` tells
  // whether there are snapshots. Call it before the first session.
  void DropSnapshotsBy(std::function<absl::Status(SessionLease& lease)> drop, std::function<bool()> any) {
    drop_snapshot_ = std::move(drop);
    any_snapshot_ = std::move(any);
  }
  // Takes one step towards room: claims it if there is enough (kMade, in `claims`), else moves one session down.
  // `effort`: new for each call, and the same for all of its steps. Blocks on the tiers. Errors of TryClaim;
  // UNAVAILABLE (TIER_UNAVAILABLE: tier) if a tier that is needed cannot be written; UNAVAILABLE (DEVICE_FAILED). The
  // errors do not name the sessions that could not be moved.
  absl::StatusOr<RoomProgress> Advance(const RoomRequest& request, RoomEffort& effort, RoomClaims* claims);
  // Moves the session of the lease down to the tier `fastest` (TierStack::NumberFrom) or a slower one, from the device
  // or a faster tier. A session that is there already stays. Blocks on the tiers. Errors of TierStack::Park and
  // TierStack::Lower, UNAVAILABLE (DEVICE_FAILED); the session then stays where it was. Any thread.
  absl::Status SendDown(SessionLease& lease, size_t fastest);
  // True if less than a sixteenth of the working devices' budget is left and there is a lower tier, so that idle
  // sessions should leave before room is needed.
  bool WantsAhead() const;
  // Moves one session down that was not used for 5 s. Blocks on the tiers. False if there is none that can be moved.
  bool EvictAhead();

  int32_t devices() const { return static_cast<int32_t>(options_.stores.size()); }
  const StateStore& store(int32_t device) const { return *options_.stores[static_cast<size_t>(device)]; }
  int64_t budget_bytes() const;  // sum over all devices
  int64_t used_bytes() const;
  int64_t working_budget_bytes() const;  // sum over the working devices
  // Returns the bytes of a session's states on a device, one slot for each layer; 0 for dims that no layout has.
  int64_t BytesOf(const SessionSpec& spec) const;
  int64_t BytesOf(const Session& session) const { return BytesOf(session.spec()); }
  // Charges a copy of the session's states, on its way to or from the device, in the pool kCopies until the result is
  // destroyed. Never waits or fails.
  ByteCharge ChargeCopy(const Session& session) const {
    return options_.ledger.Charge(BytePool::kCopies, session.account(), BytesOf(session));
  }

  int64_t sessions() const { return residents_.sessions(); }  // on the devices
  int64_t sessions(int32_t device) const { return residents_.held(device).sessions; }
  int64_t looks() const { return residents_.looks(); }  // DeviceResidents::looks
  // Returns RoomRequest::affinity for a session; "" if its client chose none, so that its affinity is its id.
  static std::string AffinityOf(const Session& session);
  // Returns the account's quota of bytes on the devices, or kNoQuota.
  static int64_t QuotaOf(const ByteAccount& account) { return account.quota(Quota::kDeviceBytes); }
  int64_t evictions() const { return evictions_; }
  int64_t evicted_bytes() const { return evicted_bytes_; }

 private:
  bool Works(int32_t device) const { return options_.copier.CheckDevice(device).ok(); }
  absl::StatusOr<std::vector<SlotClaim>> ClaimSlots(const RoomRequest& request);
  absl::StatusOr<RoomProgress> MakeOwnRoom(const absl::Status& refused, const RoomRequest& request, RoomEffort& effort);
  // Returns the working devices that the request may use, the best one first; none if there is no such device.
  std::vector<int32_t> PlacesFor(const RoomRequest& request) const;
  // Returns the largest budget of these devices.
  int64_t LargestBudget(const std::vector<int32_t>& devices) const;
  // Returns the sum of what is held on the devices on which room may be made.
  DeviceResidents::Held HeldFor(const RoomEffort& effort) const;
  // Returns for each device true if it works and room may be made on it.
  std::vector<bool> DevicesFor(const RoomEffort& effort) const;
  // Moves the first session that can be moved, of those not used since `unused_since`, and sets effort.device to its
  // device. NOT_FOUND if none can be moved now; the error of a failed device.
  absl::Status EvictOne(RoomEffort& effort, SteadyTime unused_since = SteadyTime::InfiniteFuture());
  absl::Status Evict(SessionLease& lease, size_t fastest = 0);
  // Evicts the session of the lease, or ends it if it is a snapshot that no tier has room for.
  absl::Status EvictOrDrop(SessionLease& lease);
  bool MayDropSnapshots() const { return any_snapshot_ && any_snapshot_(); }
  void NoteStuck(const Session& session, const absl::Status& why, RoomEffort& effort);

  const DeviceRoomOptions options_;
  std::function<absl::Status(SessionLease& lease)> drop_snapshot_;
  std::function<bool()> any_snapshot_;
  std::atomic<int64_t> evictions_{0}, evicted_bytes_{0};
  // Used by the moving thread: until this time it tries to move no session, because none could be moved.
  SteadyTime nothing_moves_until_;
  DeviceResidents residents_;
};

// The parts of a server that bring, copy and store sessions' states.
struct StateParts {
  TierStack& tiers;
  StateCopier& copier;
  DeviceRoom& room;
  ByteLedger& ledger;
  Executor& executor;    // runs work that no call waits for; its timers serve all waits
  TaskQueue& io;         // fetches from disk and Redis; its threads may hang with these
  TaskQueue& memory_io;  // fetches from host memory
  TaskQueue& transfers;  // threads for calls that do not step
  const SteadyClock& clock = SteadyClock::Real();
};

}  // namespace gdn
