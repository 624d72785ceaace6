// Brings sessions' states to the device when a call needs them there.
//
// A call pins all of its sessions or none. If some are parked it first gets room for all of them, moving others down,
// then their states are fetched and put on the device (Residency::BringAll names the stages):
//
//   Pin --all there--> done            residency thread                         IO threads
//     \--some parked--> [ locks them, claims room, step by step ] --> [ fetch, copy in ] ... --> done
//
// The residency thread does little at a time for one call, then the next caller's has its turn (TaskQueue); a large
// call keeps nobody waiting for long. Calls that each hold a part of the room cannot keep each other from the rest: if
// nothing can be moved, only the oldest keeps what it has. An IO thread fetches one session and puts it on the device
// before it fetches another, so there are no more copies on their way than threads, however many sessions calls have.
// A session that is pinned or locked is never moved. If little room is left, sessions that nobody uses go down ahead of
// need.
// Thread safety: all methods from any thread; a task goes on at the executor that it began on once it has ended.
// Ownership: what the options name must outlive it; on destruction everything that was asked for is answered first.
//
//   Residency::PinResults pins = co_await residency.Pin({a, b}, deadline);
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "base/open_count.h"
#include "base/steady_clock.h"
#include "base/task/deadline.h"
#include "base/task/executor.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task_queue.h"
#include "server/session/device_room.h"
#include "server/session/session_lease.h"
#include "server/session/state_copier.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct ResidencyOptions {
  TierStack& tiers;
  StateCopier& copier;
  DeviceRoom& room;
  TaskQueue& io;         // fetches from the disk and from Redis, and may hang with them
  TaskQueue& memory_io;  // fetches from host memory
  Executor& executor;    // of what no call waits for; its timers are everybody's
};

struct ResidencyCounters {
  int64_t evictions = 0;
  int64_t returns = 0;
  int64_t evicted_bytes = 0;
  int64_t returned_bytes = 0;
  int64_t failures = 0;
};

class Residency {
 public:
  using PinResults = std::vector<absl::StatusOr<SessionPin>>;  // parallel to the sessions asked for

  explicit Residency(const ResidencyOptions& options);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // The pins if all of the sessions are on the device and nobody is in the way; else none. Does not wait.
  static PinResults TryPin(const std::vector<std::shared_ptr<Session>>& sessions);
  // At least one session. Errors, each of its session: NOT_FOUND once deleted, RESOURCE_EXHAUSTED
  // (STATE_BUDGET_EXHAUSTED) for want of room, DEADLINE_EXCEEDED, CANCELLED, those of DeviceRoom::Advance and
  // TierStack::Fetch.
  Task<PinResults> Pin(std::vector<std::shared_ptr<Session>> sessions, Deadline deadline);
  // Locked, and on the device.
  Task<absl::StatusOr<SessionLease>> LockResident(std::shared_ptr<Session> session, Deadline deadline);
  // Puts the image's states on the device, for a session that has none there; moves others down for room.
  Task<absl::StatusOr<SessionLease>> Place(SessionLease lease, SessionImagePtr image, Deadline deadline);
  // Claims beside a session's own slots, or for one that is to be made, of `account`. Moves others down for room.
  Task<absl::StatusOr<RoomClaims>> Reserve(RoomRequest room, ByteAccountPtr account, Deadline deadline);
  // Brings the session back without a call that waits for it. True if it was under way or begun.
  bool Prefetch(const std::shared_ptr<Session>& session);
  // If little room is left, sessions that nobody has used for a while leave the device one after the other, between
  // what calls need. For whoever looks now and then; does not wait.
  void MoveIdleAhead();

  ResidencyCounters counters() const;

 private:
  // What is to be on the device: a session's states, or claims alone.
  struct Need;
  // What one call waits for.
  struct Request;

  // Every stage of a session's way back from a lower tier. Ends on any of the request's executors. An error is the
  // whole call's; what is one session's alone is in its need.
  Task<absl::Status> BringAll(Request& request);
  // Pins the sessions that are there, and locks the others; waits until nobody is in the way.
  Task<absl::Status> LockAll(Request& request);
  // Room for every need that is not refused. False if the request has let go of everything for an older one.
  Task<bool> ClaimRoom(Request& request);
  // The states come to their claims, beside each other.
  Task<void> FetchAll(Request& request);
  Task<void> FetchOne(Request& request, Need& need);

  // The first session that somebody is in the way of; null if all are pinned or locked. On the residency thread, as the
  // three below.
  std::shared_ptr<Session> TryLockAll(Request& request);
  // Nothing is fetched that finds no room beside the others of the call.
  void RefuseWhatNeverFits(Request& request) const;
  // Nothing can be moved for it now: whether it keeps what it has.
  bool KeepsRoom(const Request& request);
  Task<void> MoveAhead();

  absl::Status Arrive(const Request& request, Need& need);

  const ResidencyOptions options_;
  std::atomic<int64_t> returns_{0}, returned_bytes_{0}, fetch_failures_{0};
  std::atomic<uint64_t> next_number_{0};
  std::atomic<bool> moving_ahead_{false};
  std::atomic<int> bringing_{0};  // requests with room whose states are on their way
  OpenCount open_;                // requests that are not answered yet, wherever they wait

  // Of the residency thread:
  std::set<uint64_t> holders_;  // numbers of the requests that have room and wait for more
  SteadyTime ahead_again_;

  TaskQueue thread_;
  TaskGroup group_;  // last: its tasks use all of the above
};

}  // namespace gdn
