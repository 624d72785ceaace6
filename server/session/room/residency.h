// Brings sessions' states to the device when a call needs them there.
//
// A call pins all of its sessions or none. If some are parked it first gets room for all of them, moving others down,
// then their states are fetched and put on the device (Residency::BringAll names the stages):
//
//   Pin --all there--> done            residency thread                         IO threads
//     \--some parked--> [ locks them, claims room, step by step ] --> [ fetch, copy in ] ... --> done
//
// The residency thread works for one call for a short time, then for the next account's (TaskQueue), so a large call
// delays nobody for long. If several calls each hold part of the room and nothing more can be moved, only the oldest
// keeps its part, so calls cannot deadlock. An IO thread fetches one session and puts it on the device before it
// fetches another, so there are at most as many copies in memory as threads, however many sessions a call has. A
// session that is pinned or locked is never moved. If little room is left, idle sessions are moved down ahead of need.
// Thread safety: all methods from any thread; a task ends on the executor that it began on. Ownership: the parts
// must outlive it. The destructor first answers every request.
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
#include "base/task/deadline.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/threads/steady_clock.h"
#include "base/threads/task_queue.h"
#include "server/session/room/device_room.h"
#include "server/session/session_lease.h"

namespace gdn {

struct ResidencyCounters {
  int64_t evictions = 0;
  int64_t returns = 0;
  int64_t evicted_bytes = 0;
  int64_t returned_bytes = 0;
  int64_t failures = 0;
};

class Residency {
 public:
  using PinResults = std::vector<absl::StatusOr<SessionPin>>;  // parallel to the requested sessions

  explicit Residency(const StateParts& parts);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Returns the pins, parallel to `sessions`, if all sessions are on the device and can be pinned at once
  // (Session::TryPin); else an empty vector. Does not wait.
  static PinResults TryPin(const std::vector<std::shared_ptr<Session>>& sessions);
  // Pins the sessions, at least one, and brings their states to the device if necessary. Errors, for each session:
  // those of Session::CheckAlive, RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED, QUOTA_EXCEEDED) if there is no room,
  // DEADLINE_EXCEEDED, CANCELLED, those of DeviceRoom::Advance, TierStack::Fetch and CheckIsStateOf.
  Task<PinResults> Pin(std::vector<std::shared_ptr<Session>> sessions, Deadline deadline);
  // Locks the session and brings its states to the device, moving other sessions down if necessary. Errors as those of
  // a session in Pin.
  Task<absl::StatusOr<SessionLease>> LockResident(std::shared_ptr<Session> session, Deadline deadline);
  // Puts the image's states on the device for a locked session that has none there, and returns its lease; an image
  // without layers only claims the slots. Moves other sessions down if necessary. Errors as those of a session in Pin,
  // but none of a tier's Fetch; the lease is then released.
  Task<absl::StatusOr<SessionLease>> Place(SessionLease lease, SessionImagePtr image, Deadline deadline);
  // Claims room for `account`: slots beside a session's own, or for a session that is being created. Moves other
  // sessions down if necessary. Errors of DeviceRoom::Advance, DEADLINE_EXCEEDED, CANCELLED.
  Task<absl::StatusOr<RoomClaims>> Reserve(RoomRequest room, ByteAccountPtr account, Deadline deadline);
  // Copies the states of a locked session that is on the device to host memory, for others to begin with: the image has
  // no header, stored replies and base versions. The lease must outlive the task. Errors of StateCopier::CopyOut.
  Task<absl::StatusOr<SessionImagePtr>> CopyBeginning(const SessionLease& lease);
  // Begins to bring the session's states to the device, and returns at once; tries for about 1 s, and nobody hears of
  // an error. False, with nothing begun, if they are there already.
  bool Prefetch(const std::shared_ptr<Session>& session);
  // Begins to move idle sessions down if little room is left, one after the other, between the requests of calls. Call
  // now and then; does not wait.
  void MoveIdleAhead();

  ResidencyCounters counters() const;

 private:
  // A session's states that a call needs on the device, or claims on room alone.
  struct Need;
  // All needs of one call.
  struct Request;

  // Runs every stage of bringing sessions back from lower tiers. Ends on any of the request's executors. A returned
  // error is the whole call's; the error of one session is in its Need::status.
  Task<absl::Status> BringAll(Request& request);
  // Pins the sessions that are on the device, and locks the others: all or none. Waits while others keep it from one of
  // them. DEADLINE_EXCEEDED, CANCELLED.
  Task<absl::Status> LockAll(Request& request);
  // Claims room for every need that is not refused. Returns false if the request has given up its room for an older one
  // and must begin again.
  Task<bool> ClaimRoom(Request& request);
  // Fetch the states into their claimed slots, several at the same time. An error is in Need::status.
  Task<void> FetchAll(Request& request);
  Task<void> FetchOne(Request& request, Need& need);

  // Pins or locks all sessions of the request. Returns the first session that others keep it from, or null. Runs on the
  // residency thread, as RefuseWhatNeverFits and KeepsRoom do.
  std::shared_ptr<Session> TryLockAll(Request& request);
  // Refuses sessions that would not fit on the devices beside the others of the call, so that nothing is fetched for
  // them.
  void RefuseWhatNeverFits(Request& request) const;
  // Called if no session can be moved for the request now. Returns true if the request may keep the room that it has.
  bool KeepsRoom(const Request& request);
  Task<void> MoveAhead();

  absl::Status Arrive(const Request& request, Need& need);

  const StateParts parts_;
  std::atomic<int64_t> returns_{0}, returned_bytes_{0}, fetch_failures_{0};
  std::atomic<uint64_t> next_number_{0};
  std::atomic<bool> moving_ahead_{false};
  std::atomic<int> bringing_{0};  // requests that have room and whose states are being fetched
  OpenCount open_;                // requests that are not answered yet

  // Used by the residency thread only:
  std::set<uint64_t> holders_;  // numbers of the requests that have room and wait for more
  SteadyTime ahead_again_;

  TaskQueue thread_;
  TaskGroup group_;  // last: its tasks use all of the above
};

}  // namespace gdn
