// Sessions that leave this server for others of the fleet: those that it is asked for, all of them when it drains, and
// those that it has lost.
//
// A session leaves between two steps: its states go to the store, then its right is given up in order, so that it goes
// on at another server in the same epoch, with its stored replies. Calls that wait for it are told to come again.
// Thread safety: safe from any thread. Ownership: what it is made with must outlive it; on destruction what it has
// begun ends first.
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
#include "base/task/executor.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "server/session/device_room.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/redis_tier.h"

namespace gdn {

struct SessionDeparturesParts {
  RedisTier& redis;
  RedisShare& share;
  TierStack& tiers;
  DeviceRoom& room;
  SessionManager& sessions;
  Executor& executor;
};

class SessionDepartures {
 public:
  explicit SessionDepartures(const SessionDeparturesParts& parts) : parts_(parts), group_(parts.executor) {}

  // Begins; what cannot leave now stays, and can be asked for again. False if there is no such session here.
  bool HandOver(const StateKey& key);
  // Of how many, so far: gone, and could not go.
  using Progress = std::function<void(int64_t all, int64_t gone, int64_t failed)>;
  // All that are here. Blocks for `timeout` at most; true if all have gone. Those that have not may go later, and
  // `progress` is told of them.
  bool HandOverAll(absl::Duration timeout, Progress progress);
  // They are others' now, and what is here of them is worth nothing.
  void Drop(const std::vector<StateKey>& keys);
  // So are those that this server has no right to, as far as it knows itself.
  void DropUnowned();

  int64_t handed_over() const { return handed_over_; }
  int64_t lost() const { return lost_; }

 private:
  // How far HandOverAll is.
  struct Work;

  Task<absl::Status> Leave(std::shared_ptr<Session> session);
  Task<void> LeaveAsAsked(std::shared_ptr<Session> session);
  Task<void> LeaveWithAll(std::shared_ptr<Session> session, std::shared_ptr<Work> work);
  // On a thread that may block.
  absl::Status Store(SessionLease& lease);

  const SessionDeparturesParts parts_;
  std::atomic<int64_t> handed_over_{0};
  std::atomic<int64_t> lost_{0};
  TaskGroup group_;  // last: its tasks use all of the above
};

}  // namespace gdn
