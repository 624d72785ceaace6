#include "server/session/device_room.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr absl::Duration kRoomPoll = absl::Milliseconds(2);

}  // namespace

absl::Status ReturnDeadlinePassed() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded,
                   "the deadline passed while the session's states were brought back to the device; they did not move");
}

void DeviceRoom::Track(const std::shared_ptr<Session>& session) {
  absl::MutexLock lock(&mu_);
  resident_[session.get()] = session;
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

absl::StatusOr<std::vector<SlotClaim>> DeviceRoom::MakeRoom(const RoomRequest& request, absl::Time deadline) {
  const absl::Time end = std::min(deadline, absl::Now() + kRoomPatience);
  for (;;) {
    auto claims = TryClaim(request);
    if (claims.ok() || !CanMakeRoom(claims.status())) return claims;
    GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(request.dims, options_.store.options().max_draft));
    if (request.count * layout.slot_bytes() > budget_bytes()) return claims;  // it never fits
    const absl::Status evicted = EvictOne();
    if (evicted.ok()) continue;
    if (!absl::IsNotFound(evicted)) return evicted;
    // Nothing can move now. Calls that run end soon.
    if (sessions() == 0) return claims;
    if (absl::Now() >= end) return deadline <= absl::Now() ? ReturnDeadlinePassed() : claims.status();
    absl::SleepFor(kRoomPoll);
  }
}

absl::Status DeviceRoom::EvictOne() {
  std::vector<std::pair<absl::Time, std::shared_ptr<Session>>> candidates;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = resident_.begin(); it != resident_.end();) {
      if (auto session = it->second.lock(); session != nullptr) {
        candidates.emplace_back(session->last_used(), std::move(session));
        ++it;
      } else {
        it = resident_.erase(it);
      }
    }
  }
  // A heap and no sort: the first few of thousands are looked at.
  const auto later = [](const auto& a, const auto& b) { return a.first > b.first; };
  std::make_heap(candidates.begin(), candidates.end(), later);
  for (; !candidates.empty(); candidates.pop_back()) {
    std::pop_heap(candidates.begin(), candidates.end(), later);
    SessionLease lease = candidates.back().second->TryLock();
    if (lease.valid() && lease.resident()) return Evict(lease);
  }
  return absl::NotFoundError("no session can be moved");
}

absl::Status DeviceRoom::Evict(SessionLease& lease) {
  const std::shared_ptr<Session> session = lease.session();
  GDN_ASSIGN_OR_RETURN(const SessionImagePtr image, options_.copier.CopyOut(lease, /*known=*/{}));
  GDN_RETURN_IF_ERROR(options_.tiers.Park(session->key(), image));
  const std::string place = options_.tiers.PlaceOf(session->key());
  if (place != "host") session->NoteDurable(lease.changes(), lease.counts(), absl::Now());
  lease.Unload();
  Forget(*session);
  evictions_.fetch_add(1, std::memory_order_relaxed);
  evicted_bytes_.fetch_add(image->bytes(), std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace gdn
