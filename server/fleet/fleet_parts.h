// The parts of a server that its membership in a fleet uses.
//
// Thread safety: references to parts that are safe from any thread. Ownership: the parts must outlive the fleet.
//
//   Fleet fleet({.redis = redis, .tiers = tiers, ...}, {.lease = absl::Seconds(15)});
#pragma once

#include "base/task/executor.h"
#include "server/session/durable/recovery.h"
#include "server/session/room/device_room.h"
#include "server/session/session_environment.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/redis/redis_tier.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct FleetParts {
  RedisTier& redis;  // opened with sharing, so that redis.share() is not null
  TierStack& tiers;
  DeviceRoom& room;
  SessionManager& sessions;
  SessionEnvironment& environment;
  Executor& executor;  // runs arrivals and departures of sessions
  SpecOfModelFn spec_of;

  RedisShare& share() const { return *redis.share(); }
};

}  // namespace gdn
