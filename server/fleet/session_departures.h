// Moves sessions from this server to others of the fleet: sessions that another server asks for, all sessions when this
// server drains, and sessions that it has lost.
//
// A session leaves between two steps. Its states are stored in Redis, then the right to it is given up in order, so
// that it continues on another server in the same epoch and with its stored replies. Calls that wait for it are refused
// with SESSION_MOVED, so that clients retry.
// Thread safety: safe from any thread. Ownership: the parts must outlive it. The destructor waits for departures that
// have begun.
//
//   departures.HandOver(key);                            // somebody has asked for it
//   departures.HandOverAll(absl::Seconds(30), progress); // the server drains
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "server/fleet/fleet_parts.h"

namespace gdn {

class SessionDepartures {
 public:
  explicit SessionDepartures(const FleetParts& parts) : parts_(parts), group_(parts.executor) {}

  // Begins to hand the session over, without waiting. A session that cannot leave now stays, and may be asked for
  // again; one that has lost its state always stays. False if there is no such session here.
  bool HandOver(const StateKey& key);
  // Receives the progress: sessions in all, those that have left, and those that could not leave. Called from any
  // thread, one call at a time, first with 0 and 0.
  using Progress = std::function<void(int64_t all, int64_t gone, int64_t failed)>;
  // Hands over all sessions that are here. Blocks for `timeout` at most. Returns true if all have left. After a timeout
  // the others may still leave, and `progress` is then called. So what it uses must live until this object is
  // destroyed.
  bool HandOverAll(absl::Duration timeout, Progress progress);
  // Stops serving these sessions at once, because other servers own them now, and begins to delete their states here.
  // Steps that run are discarded. Does not wait.
  void Drop(const std::vector<StateKey>& keys);
  // Drops all sessions here for which this server has no right, as far as it knows without asking Redis.
  void DropUnowned();

  int64_t handed_over() const { return handed_over_; }
  int64_t lost() const { return lost_; }

 private:
  // Progress of one HandOverAll.
  struct Work;

  Task<absl::Status> Leave(std::shared_ptr<Session> session);
  Task<void> LeaveAsAsked(std::shared_ptr<Session> session);
  Task<void> LeaveWithAll(std::shared_ptr<Session> session, std::shared_ptr<Work> work);
  // Stores the session and gives the right to it up. Call on a thread that may block. If the state cannot be stored,
  // returns the error, and the session stays.
  absl::Status Store(SessionLease& lease);

  const FleetParts parts_;
  std::atomic<int64_t> handed_over_{0}, lost_{0};
  TaskGroup group_;  // last: its tasks use all of the above
};

}  // namespace gdn
