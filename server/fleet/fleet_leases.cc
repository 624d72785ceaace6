#include "server/fleet/fleet_leases.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/task/deadline.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

constexpr absl::Duration kRound = absl::Milliseconds(500);
// After this time the servers that live have ended their sessions of a lease, and what is left in Redis is nobody's.
constexpr absl::Duration kLeftAfter = absl::Seconds(3);
// A scan reads the header of every session in Redis, so only one server of the fleet scans, and not more often.
constexpr absl::Duration kBetweenScans = absl::Seconds(5);
// Sessions that no server can take for so long, because none has their model, are given up: they end when used.
constexpr absl::Duration kGiveUpAfter = absl::Hours(1);
constexpr size_t kMostTaken = 256;  // sessions that one scan takes; the next one takes the others
constexpr absl::Duration kTakeTimeout = absl::Seconds(2);

}  // namespace

FleetLeases::FleetLeases(const FleetParts& parts, SessionArrivals& arrivals)
    : parts_(parts), arrivals_(arrivals), group_(parts_.executor) {
  leases().SetShared();
}

void FleetLeases::Begin() {
  thread_.emplace("gdn-leases", kRound, [this] { return Round(); });
}

absl::Status FleetLeases::CheckAnswers() const {
  if (!silent_.load(std::memory_order_relaxed)) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kUnavailable, reason::kTierUnavailable,
      "Redis, which has the leases of the fleet, does not answer, so it is asked nothing until it does. No "
      "lease ends meanwhile; try again later",
      {{"tier", std::string(parts_.redis.name())}});
}

absl::Status FleetLeases::Noted(absl::Status status) {
  silent_.store(absl::IsUnavailable(status), std::memory_order_relaxed);
  return status;
}

absl::StatusOr<ClientLeasePtr> FleetLeases::Open(const ByteAccountPtr& account, const std::string& principal,
                                                 const std::string& id, absl::Duration grace) {
  GDN_ASSIGN_OR_RETURN(const ClientLeasePtr lease, leases().Open(account, principal, id, grace));
  GDN_RETURN_IF_ERROR(CheckAnswers());
  const absl::StatusOr<RedisClientLeases::Found> found = redis().Open({principal, id}, grace);
  GDN_RETURN_IF_ERROR(Noted(found.status()));
  if (found->grace == grace) return lease;
  leases().End(lease);
  return LeaseExists(id, found->grace, grace);
}

absl::StatusOr<ClientLeasePtr> FleetLeases::Renew(const std::string& principal, const std::string& id) {
  const absl::StatusOr<ClientLeasePtr> here = leases().Find(principal, id);
  std::optional<absl::Duration> grace;
  if (here.ok() && (*here)->end() > leases().clock().Now()) {
    grace = (*here)->grace();
    leases().Renew(principal, id).IgnoreError();  // so that it counts if Redis does not answer
  }
  GDN_RETURN_IF_ERROR(CheckAnswers());
  const absl::StatusOr<std::optional<RedisClientLeases::Found>> found = redis().Renew({principal, id}, grace);
  GDN_RETURN_IF_ERROR(Noted(found.status()));
  if (!found->has_value()) return LeaseNotFound(id);
  leases().Adopt(principal, id, (*found)->grace);
  return leases().Renew(principal, id);
}

absl::StatusOr<ClientLeasePtr> FleetLeases::Find(const std::string& principal, const std::string& id) {
  absl::StatusOr<ClientLeasePtr> here = leases().Find(principal, id);
  if (here.ok()) return here;
  GDN_RETURN_IF_ERROR(CheckAnswers());
  const absl::StatusOr<std::optional<RedisClientLeases::Found>> found = redis().Find({principal, id});
  GDN_RETURN_IF_ERROR(Noted(found.status()));
  if (!found->has_value()) return LeaseNotFound(id);
  return leases().Adopt(principal, id, (*found)->grace);
}

absl::StatusOr<ClientLeasePtr> FleetLeases::End(const std::string& principal, const std::string& id) {
  GDN_ASSIGN_OR_RETURN(const ClientLeasePtr lease, Find(principal, id));
  GDN_RETURN_IF_ERROR(CheckAnswers());
  GDN_RETURN_IF_ERROR(Noted(redis().End({principal, id})));
  return lease;
}

absl::Duration FleetLeases::Round() {
  absl::Status done = EndLapsed();
  if (done.ok()) done = TakeLeftSessions();
  if (!done.ok() && !std::exchange(failing_, true)) {
    spdlog::warn("leases of clients cannot be compared with Redis; none ends until that is possible: {}",
                 std::string(done.message()));
  }
  if (done.ok() && std::exchange(failing_, false)) spdlog::info("leases of clients are compared with Redis again");
  return kRound;
}

absl::Status FleetLeases::EndLapsed() {
  const std::vector<ClientLeasePtr> here = leases().All();
  if (here.empty()) return absl::OkStatus();
  const SteadyTime asked = leases().clock().Now();
  std::vector<RedisClientLeases::Known> known;
  known.reserve(here.size());
  for (const ClientLeasePtr& lease : here) {
    known.push_back({.name = {lease->principal(), lease->id()}, .grace = lease->grace(), .left = lease->end() - asked});
  }
  const absl::StatusOr<std::vector<absl::Duration>> left = redis().Look(known);
  GDN_RETURN_IF_ERROR(Noted(left.status()));
  for (size_t i = 0; i < here.size(); ++i) {
    if ((*left)[i] > absl::ZeroDuration()) {
      leases().SetEnd(here[i], asked + (*left)[i]);
    } else {
      leases().End(here[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status FleetLeases::TakeLeftSessions() {
  GDN_RETURN_IF_ERROR(parts_.environment.CheckOurs());
  const auto found = redis().Ended(kLeftAfter);
  GDN_RETURN_IF_ERROR(Noted(found.status()));
  const auto& ended = *found;
  if (ended.empty()) return absl::OkStatus();
  GDN_ASSIGN_OR_RETURN(const bool scans, redis().TakeScan(kBetweenScans));
  if (!scans) return absl::OkStatus();
  std::map<RedisClientLeases::Name, int64_t> left;  // sessions that Redis has of each lease
  for (const auto& [name, ago] : ended) left.emplace(name, 0);
  GDN_ASSIGN_OR_RETURN(const std::vector<StoredSession> stored, parts_.redis.List());
  size_t taken = 0;
  for (const StoredSession& session : stored) {
    if (!session.key.checkpoint.empty() || session.header.lease.empty()) continue;
    const auto lease = left.find({session.key.principal, session.header.lease});
    if (lease == left.end()) continue;
    ++lease->second;
    if (parts_.sessions.Knows(session.key.principal, session.key.id) || taken == kMostTaken) continue;
    ++taken;
    BringRequest request{.make = false, .account = nullptr, .deadline = Deadline(SteadyNow() + kTakeTimeout)};
    group_.Spawn(arrivals_.Bring(session.key, std::move(request)));
  }
  if (taken > 0) spdlog::info("sessions of ended leases that no server had are taken, to end them: {}", taken);
  for (const auto& [name, ago] : ended) {
    if (left[name] > 0 && ago < kGiveUpAfter) continue;
    if (left[name] > 0) {
      spdlog::warn("lease id={} ended {} ago and still has sessions in Redis={}, which no server can take", name.id,
                   absl::FormatDuration(ago), left[name]);
    }
    GDN_RETURN_IF_ERROR(redis().Forget(name));
  }
  return absl::OkStatus();
}

}  // namespace gdn
