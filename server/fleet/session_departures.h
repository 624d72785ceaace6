// Sessions that leave this server for others of the fleet: those that it is asked for, all of them when it drains, and
// those that it has lost.
//
// A session leaves between two steps: its states go to the store, then its right is given up in order, so that it goes
// on at another server in the same epoch, with its stored replies. Calls that wait for it are told to come again.
// Thread safety: safe from any thread. Ownership: shared with what it has begun; what it is made with must outlive
// that.
//
//   departures->HandOver(key);                            // somebody has asked for it
//   departures->HandOverAll(absl::Seconds(30), progress); // the server drains
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
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
};

class SessionDepartures : public std::enable_shared_from_this<SessionDepartures> {
 public:
  explicit SessionDepartures(const SessionDeparturesParts& parts) : parts_(parts) {}

  // Begins; what cannot leave now stays, and can be asked for again. False where there is no such session here.
  bool HandOver(const StateKey& key);
  // Of how many, so far: gone, and could not go.
  using Progress = std::function<void(int64_t all, int64_t gone, int64_t failed)>;
  // All that are here. Waits for `timeout` at most; true where all have gone.
  bool HandOverAll(absl::Duration timeout, const Progress& progress);
  // They are others' now, and what is here of them is worth nothing.
  void Drop(const std::vector<StateKey>& keys);
  // So are those that this server has no right to, as far as it knows itself.
  void DropUnowned();

  int64_t handed_over() const { return handed_over_; }
  int64_t lost() const { return lost_; }

 private:
  absl::Status Store(SessionLease& lease);

  const SessionDeparturesParts parts_;
  std::atomic<int64_t> handed_over_{0};
  std::atomic<int64_t> lost_{0};
};

}  // namespace gdn
