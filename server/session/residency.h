// Brings sessions' states to the device when a call needs them there.
//
// A call pins all of its sessions or none. Where some are parked it first gets room for all of them, moving others
// down, then their states are fetched and put on the device:
//
//   Pin --all there--> done            residency thread                         IO threads
//     \--some parked--> [ locks them, claims room, step by step ] --> [ fetch, copy in ] ... --> done
//
// The residency thread does little at a time for one call, then the next caller's has its turn (TaskQueue); a large
// call keeps nobody waiting for long. Calls that each hold a part of the room cannot keep each other from the rest:
// where nothing can be moved, only the oldest keeps what it has. An IO thread fetches one session and puts it on the
// device before it fetches another, so there are no more copies on their way than threads, however many sessions calls
// have. A session that is pinned or locked is never moved. Where little room is left, sessions that nobody uses go down
// ahead of need.
// Thread safety: all methods from any thread; callbacks come from any thread, maybe before the method returns.
// Ownership: what the options name must outlive it; on destruction everything that was asked for is answered first.
//
//   residency.Pin({a, b}, {deadline, cancelled}, [](std::vector<absl::StatusOr<SessionPin>> pins) { ... });
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "base/task_queue.h"
#include "server/session/device_room.h"
#include "server/session/session_lease.h"
#include "server/session/state_copier.h"
#include "server/session/wait_limit.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct ResidencyOptions {
  TierStack& tiers;
  StateCopier& copier;
  DeviceRoom& room;
  TaskQueue& io;         // fetches from the disk and from Redis, and may hang with them
  TaskQueue& memory_io;  // fetches from host memory
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
  using PinsDone = std::function<void(PinResults)>;
  using LeaseDone = std::function<void(absl::StatusOr<SessionLease>)>;
  using ClaimsDone = std::function<void(absl::StatusOr<RoomClaims>)>;

  explicit Residency(const ResidencyOptions& options);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Errors, each of its session: NOT_FOUND once deleted, RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) for want of room,
  // those of WaitLimit::Check, DeviceRoom::Advance and TierStack::Fetch.
  void Pin(std::vector<std::shared_ptr<Session>> sessions, WaitLimit limit, PinsDone done);
  // Locked, and on the device.
  void LockResident(const std::shared_ptr<Session>& session, WaitLimit limit, LeaseDone done);
  // Puts the image's states on the device, for a session that has none there; moves others down for room.
  void Place(SessionLease lease, SessionImagePtr image, WaitLimit limit, LeaseDone done);
  // Claims beside a session's own slots, or for one that is to be made, of `account`. Moves others down for room.
  void Reserve(RoomRequest room, const ByteAccountPtr& account, WaitLimit limit, ClaimsDone done);
  // Brings the session back without a call that waits for it. True where it was under way or begun.
  bool Prefetch(const std::shared_ptr<Session>& session);
  // Where little room is left, sessions that nobody has used for a while leave the device one after the other, between
  // what calls need. For whoever looks now and then; does not wait.
  void MoveIdleAhead();

  ResidencyCounters counters() const;

 private:
  // What is to be on the device: a session's states, or claims alone.
  struct Need {
    RoomRequest room;
    RoomClaims claims;
    absl::Status status;
    // Of a session:
    size_t index = 0;  // of the request's sessions
    SessionLease lease;
    SessionImagePtr image;  // nullptr: to be fetched

    bool wants_claims() const { return status.ok() && claims.empty() && room.count > 0; }
    // Before the call is answered: what its client does next may need the room.
    void GiveUp();
  };
  struct Request {
    Request(Residency& to, ByteAccountPtr account, WaitLimit limit);
    ~Request();
    Residency& residency;
    const ByteAccountPtr account;
    const WaitLimit limit;
    const uint64_t number;  // the older, the less
    PinsDone pins_done;     // one of these three is set
    LeaseDone lease_done;
    ClaimsDone claims_done;
    std::vector<std::shared_ptr<Session>> sessions;  // pins_done
    PinResults pins;                                 // parallel to them
    std::vector<Need> needs;
    std::atomic<size_t> coming{0};  // of needs
    // Of whichever thread has it:
    RoomEffort effort;
    SteadyTime patience = SteadyTime::InfiniteFuture();  // with others that do not let go
  };
  using RequestPtr = std::shared_ptr<Request>;

  // --- Any thread.
  void TryPins(const RequestPtr& request);
  // Once nobody has the session locked.
  void Again(const RequestPtr& request, const std::shared_ptr<Session>& blocked);
  static void Fail(const RequestPtr& request, const absl::Status& status);
  void Post(const RequestPtr& request, void (Residency::*step)(const RequestPtr&));

  // --- The residency thread.
  // Pins the sessions that are there, and locks the others.
  void Begin(const RequestPtr& request);
  bool LockParked(const RequestPtr& request, size_t index);
  // Nothing is fetched that finds no room beside the others of the call.
  void RefuseWhatNeverFits(Request& request) const;
  // Claims, for a while.
  void Claim(const RequestPtr& request);
  void Stuck(const RequestPtr& request);
  void RetryStuck();
  void MoveOneAhead();

  // --- The IO threads.
  void Bring(const RequestPtr& request);
  void BringOne(const RequestPtr& request, Need& need);
  absl::Status Arrive(const Request& request, Need& need);
  void Arrived(const RequestPtr& request);
  static void Finish(Request& request);

  const ResidencyOptions options_;
  std::atomic<int64_t> returns_{0}, returned_bytes_{0}, fetch_failures_{0};
  std::atomic<uint64_t> next_number_{0};
  std::atomic<bool> moving_ahead_{false};
  std::atomic<int> bringing_{0};  // requests with room whose states are on their way

  absl::Mutex mu_;
  int open_requests_ ABSL_GUARDED_BY(mu_) = 0;  // not answered yet, wherever they wait

  // Of the residency thread:
  std::set<uint64_t> holders_;  // numbers of the requests that have room and wait for more
  std::vector<RequestPtr> stuck_;
  SteadyTime ahead_again_;

  TaskQueue thread_;  // last: it uses all of the above
};

}  // namespace gdn
