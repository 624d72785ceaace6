// Brings sessions' states to the device when a call needs them there.
//
// A call pins all of its sessions or none. Where one is parked, the call waits: its states are fetched from their tier
// by the IO threads and put on the device by the residency thread, which serves one call after the other and so cannot
// be caught between two calls that each have half of what they need. A session that is pinned or locked is never moved.
// Thread safety: all methods from any thread; callbacks come from any thread, maybe before the method returns.
// Ownership: what the options name must outlive it; on destruction everything that was asked for is answered first.
//
//   residency.Pin({a, b}, deadline, [](std::vector<absl::StatusOr<SessionPin>> pins) { ... });
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
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
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct ResidencyOptions {
  TierStack& tiers;
  StateCopier& copier;
  DeviceRoom& room;
  TaskQueue& io;  // fetches from the tiers
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
  using ClaimsDone = std::function<void(absl::StatusOr<std::vector<SlotClaim>>)>;

  explicit Residency(const ResidencyOptions& options);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Errors, each of its session: NOT_FOUND once deleted, RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) for want of room,
  // DEADLINE_EXCEEDED, and those of TierStack::Fetch.
  void Pin(std::vector<std::shared_ptr<Session>> sessions, SteadyTime deadline, PinsDone done);
  // Locked, and on the device.
  void LockResident(const std::shared_ptr<Session>& session, SteadyTime deadline, LeaseDone done);
  // Puts the image's states on the device, for a session that has none there; moves others down for room.
  void Place(SessionLease lease, SessionImagePtr image, SteadyTime deadline, LeaseDone done);
  // Claims beside a session's own slots, or for one that is to be made. Moves others down for room.
  void Reserve(RoomRequest room, SteadyTime deadline, ClaimsDone done);
  // Brings the session back without a call that waits for it. True where it was under way or begun.
  bool Prefetch(const std::shared_ptr<Session>& session);

  ResidencyCounters counters() const;

 private:
  struct Arrival {
    size_t index = 0;  // of the request's sessions
    SessionLease lease;
    SessionImagePtr image;
  };
  struct Request {
    explicit Request(Residency& to);
    ~Request();
    Residency& residency;
    std::vector<std::shared_ptr<Session>> sessions;
    SteadyTime deadline;
    PinsDone done;  // one of these three is set
    LeaseDone lease_done;
    ClaimsDone claims_done;
    RoomRequest room;  // claims_done
    std::vector<Arrival> arrivals;
    std::vector<absl::Status> errors;  // parallel to sessions
  };
  using RequestPtr = std::shared_ptr<Request>;

  static bool TooLate(const Request& request);
  static void FailLate(const Request& request);  // of pins
  void TryAll(const RequestPtr& request);
  void Bring(const RequestPtr& request, const std::vector<size_t>& missing);
  void Again(const RequestPtr& request, const std::shared_ptr<Session>& blocked);
  void Enqueue(RequestPtr request);
  void Loop();
  void Serve(const RequestPtr& request);
  void ServePins(const RequestPtr& request);
  absl::Status Arrive(Arrival& arrival, SteadyTime deadline);

  const ResidencyOptions options_;
  std::atomic<int64_t> returns_{0}, returned_bytes_{0}, fetch_failures_{0};

  absl::Mutex mu_;
  std::deque<RequestPtr> requests_ ABSL_GUARDED_BY(mu_);
  int open_requests_ ABSL_GUARDED_BY(mu_) = 0;  // not answered yet, wherever they wait
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gdn
