// Brings sessions here that calls name and this server does not have. The store says who owns such a session:
//
//   nobody's     it is taken, with its state as stored: in the same epoch if it was given up in order, else in a new
//                one, so that clients send again what is missing
//   a server's   that one is asked for it, and it is taken once it has been given up
//   unknown      there is none; or, for one that is to be made, its name is taken
// Rights to names are given back on the same path. For one session only one operation runs at a time. Calls for the
// same session share one attempt, which ends when no call waits for it any more. A waiting call blocks no thread.
// Thread safety: safe from any thread; Bring continues on the executor that it began on. Ownership: the parts must
// outlive it. The destructor first answers every call.
//
//   BringRequest request = {.account = account, .deadline = deadline};
//   const absl::Status here = co_await arrivals.Bring(key, std::move(request));
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/open_count.h"
#include "base/task/deadline.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/threads/task_queue.h"
#include "base/threads/turn_queue.h"
#include "server/admission/byte_ledger.h"
#include "server/fleet/fleet_parts.h"

namespace gdn {

struct BringRequest {
  bool make = false;  // if there is no such session, reserve its name for the call, which creates it
  ByteAccountPtr account;
  Deadline deadline;
};

class SessionArrivals {
 public:
  // Borrows the parts. `longest_wait`: time from the beginning of an attempt after which its calls fail with
  // SESSION_ELSEWHERE, if another server has not handed the session over.
  SessionArrivals(const FleetParts& parts, absl::Duration longest_wait);
  ~SessionArrivals();
  SessionArrivals(const SessionArrivals&) = delete;
  SessionArrivals& operator=(const SessionArrivals&) = delete;

  // Waits until the session is here. OK if it is, or, with `make`, if its name is reserved for this server. NOT_FOUND
  // (SESSION_NOT_FOUND) if there is no such session. UNAVAILABLE (SESSION_ELSEWHERE: node; SERVER_DRAINING;
  // NODE_LEASE_LAPSED; TIER_UNAVAILABLE), DATA_LOSS (INVALID_STATE_FILE), errors of AdoptSession and of the deadline.
  Task<absl::Status> Bring(StateKey key, BringRequest request);
  // Gives up any right that this server has to a session that is not here. Returns at once; the store is told later.
  void GiveBack(const StateKey& key) { Join(key, nullptr); }
  // Takes no session in from now on: calls for sessions that are not here get SERVER_DRAINING.
  void Close() { closed_ = true; }

  int64_t taken_over() const { return taken_over_; }
  int64_t replayed() const { return replayed_; }  // sessions taken over in a new epoch
  // Attempts that have not ended, those that only give a right back included.
  int64_t waiting() const;

 private:
  // State shared by an attempt and the calls that wait for it.
  struct Arrival;

  // Returns the session's attempt, and begins one if there is none. `call` null: a new attempt first gives the
  // session's right back.
  std::shared_ptr<Arrival> Join(const StateKey& key, const BringRequest* call);
  // Runs an attempt. All requests to Redis for a session that is to come are made here, one after another.
  Task<void> Arrive(StateKey key, std::shared_ptr<Arrival> arrival, bool give_back);
  Turn TurnOf(const Arrival& arrival) const;
  bool Makes(const Arrival& arrival) const;
  // False if no call waits any more. Then the session has no attempt, and Arrive must end.
  bool IsWanted(const StateKey& key, const Arrival& arrival);
  // Ends the attempt and tells its calls. Returns false if the attempt must be repeated, because a call that would
  // create the session has joined and its name is not reserved. `made`: the last try would have reserved it.
  bool Finish(const StateKey& key, Arrival& arrival, absl::Status status, bool made);

  // Tries to take the session. Call on a thread that may block. Returns nullopt if the session is here or its name is
  // reserved, else the server that has it. Errors of Bring.
  absl::StatusOr<std::optional<TakenSession>> Take(const StateKey& key, bool make);
  absl::Status Adopt(const StateKey& key, const TakenSession& taken, bool make);
  void AdoptCheckpoints(const StateKey& key);

  const FleetParts parts_;
  const absl::Duration longest_wait_;
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> taken_over_{0}, replayed_{0};
  mutable absl::Mutex mu_;
  std::map<StateKey, std::shared_ptr<Arrival>> arrivals_ ABSL_GUARDED_BY(mu_);
  CancelSource end_;  // cancels the pauses of attempts
  OpenCount calls_;   // calls of Bring that wait
  TaskQueue threads_;
  TaskGroup group_;  // last: its tasks use all of the above
};

}  // namespace gdn
