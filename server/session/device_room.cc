#include "server/session/device_room.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr absl::Duration kRoomPoll = absl::Milliseconds(2);
// How long a session that could not be moved goes behind the others; each time twice as long.
constexpr absl::Duration kLeastStuck = absl::Seconds(5);
constexpr absl::Duration kMostStuck = absl::Minutes(5);

std::string TierOf(const absl::Status& status) {
  const ErrorMetadataMap metadata = ErrorMetadata(status);
  const auto it = metadata.find("tier");
  return it == metadata.end() ? std::string() : it->second;
}

// For a call that needs room: whose sessions are in the way is not its business.
absl::Status NothingBelowTakesStates(const std::string& tier) {
  return MakeError(
      absl::StatusCode::kUnavailable, reason::kTierUnavailable,
      "the device has no room, and no tier below it takes the states of idle sessions now; nothing is lost, "
      "try again later",
      {{"tier", tier.empty() ? std::string("lower") : tier}});
}

}  // namespace

absl::Status ReturnDeadlinePassed() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded,
                   "the deadline passed while the session's states were brought back to the device; they did not move");
}

void DeviceRoom::Track(const std::shared_ptr<Session>& session) {
  absl::MutexLock lock(&mu_);
  Resident& fresh = resident_[session.get()] = Resident();
  fresh.session = session;
}

void DeviceRoom::Forget(const Session& session) {
  absl::MutexLock lock(&mu_);
  resident_.erase(&session);
}

int64_t DeviceRoom::sessions() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(resident_.size());
}

int64_t DeviceRoom::BytesOf(const Session& session) const {
  const auto layout = StateLayout::Make(session.spec().dims, options_.store.options().max_draft);
  return layout.ok() ? layout->slot_bytes() * static_cast<int64_t>(session.spec().layers.size()) : 0;
}

absl::StatusOr<std::vector<SlotClaim>> DeviceRoom::TryClaim(const RoomRequest& request) {
  auto claims = request.pool != nullptr ? options_.store.ReserveIn(request.pool, request.count)
                                        : options_.store.Reserve(request.dims, request.count);
  options_.copier.NoteDevice(claims.status());  // a new pool is zeroed by the device
  return claims;
}

absl::StatusOr<std::vector<SlotClaim>> DeviceRoom::MakeRoom(const RoomRequest& request, SteadyTime deadline) {
  const SteadyTime end = std::min(deadline, SteadyNow() + kRoomPatience);
  Attempt attempt;
  for (;;) {
    auto claims = TryClaim(request);
    if (claims.ok() || !CanMakeRoom(claims.status())) return claims;
    GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(request.dims, options_.store.options().max_draft));
    if (request.count * layout.slot_bytes() > budget_bytes()) return claims;  // it never fits
    if (SteadyNow() >= deadline) return ReturnDeadlinePassed();               // and moves nobody any more
    const absl::Status evicted = EvictOne(attempt);
    if (evicted.ok()) continue;
    if (!absl::IsNotFound(evicted)) return evicted;
    // Nothing can move now. Calls that run end soon; what could not be moved a moment ago stays.
    if (const absl::Status takes = options_.tiers.TakesStates(); !takes.ok()) {
      return absl::IsUnavailable(takes) ? NothingBelowTakesStates(TierOf(takes)) : claims.status();
    }
    const bool over = SteadyNow() >= end;
    if (over && deadline <= SteadyNow()) return ReturnDeadlinePassed();
    if (over || sessions() <= static_cast<int64_t>(attempt.stuck.size())) {
      return attempt.error.ok() ? claims.status() : attempt.error;
    }
    absl::SleepFor(kRoomPoll);
  }
}

std::vector<DeviceRoom::Candidate> DeviceRoom::Candidates(const Attempt& attempt) {
  std::vector<Candidate> candidates;
  const SteadyTime now = options_.clock.Now();
  absl::MutexLock lock(&mu_);
  for (auto it = resident_.begin(); it != resident_.end();) {
    auto session = it->second.session.lock();
    if (session == nullptr) {
      it = resident_.erase(it);
      continue;
    }
    const bool stuck = now < it->second.stuck_until;
    ++it;
    if (attempt.stuck.contains(session.get())) continue;
    candidates.emplace_back(stuck, session->last_used(), std::move(session));
  }
  return candidates;
}

absl::Status DeviceRoom::EvictOne(Attempt& attempt) {
  std::vector<Candidate> candidates = Candidates(attempt);
  // A heap and no sort: the first few of thousands are looked at.
  std::ranges::make_heap(candidates, std::greater<>());
  for (; !candidates.empty() && options_.tiers.TakesStates().ok(); candidates.pop_back()) {
    std::ranges::pop_heap(candidates, std::greater<>());
    const std::shared_ptr<Session>& session = std::get<2>(candidates.back());
    if (BytesOf(*session) >= attempt.too_large) {
      attempt.stuck.insert(session.get());
      continue;
    }
    SessionLease lease = session->TryLock();
    if (!lease.valid() || !lease.resident()) continue;
    const absl::Status evicted = Evict(lease);
    if (evicted.ok()) return evicted;
    GDN_RETURN_IF_ERROR(options_.copier.CheckDevice());
    NoteStuck(*session, evicted, attempt);
  }
  return absl::NotFoundError("no session can be moved");
}

void DeviceRoom::NoteStuck(const Session& session, const absl::Status& why, Attempt& attempt) {
  attempt.stuck.insert(&session);
  if (absl::IsResourceExhausted(why)) attempt.too_large = std::min(attempt.too_large, BytesOf(session));
  if (absl::IsUnavailable(why)) attempt.error = NothingBelowTakesStates(TierOf(why));
  const SteadyTime now = options_.clock.Now();
  absl::MutexLock lock(&mu_);
  const auto it = resident_.find(&session);
  if (it == resident_.end() || now < it->second.stuck_until) return;
  Resident& resident = it->second;
  resident.stuck_for = std::clamp(2 * resident.stuck_for, kLeastStuck, kMostStuck);
  resident.stuck_until = now + resident.stuck_for;
  spdlog::warn("session id={} could not leave the device and stays there: {}", session.id(),
               std::string(why.message()));
}

absl::Status DeviceRoom::Evict(SessionLease& lease) {
  const std::shared_ptr<Session> session = lease.session();
  GDN_ASSIGN_OR_RETURN(const SessionImagePtr image, options_.copier.CopyOut(lease, /*known=*/{}));
  GDN_RETURN_IF_ERROR(options_.tiers.Park(session->key(), image));
  const std::string place = options_.tiers.PlaceOf(session->key());
  if (place != "host") session->NoteDurable(lease.changes(), lease.counts(), session->Now());
  lease.Unload();
  Forget(*session);
  evictions_.fetch_add(1, std::memory_order_relaxed);
  evicted_bytes_.fetch_add(image->bytes(), std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace gdn
