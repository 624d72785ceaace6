#include "server/session/room/device_room.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

// If all sessions are pinned, how soon this looks again for one that is not.
constexpr absl::Duration kRoomPoll = absl::Milliseconds(2);
// One part in so many of the budget is kept free, by moving down sessions that were idle for kIdle.
constexpr int64_t kAheadPart = 16;
constexpr absl::Duration kIdle = absl::Seconds(5);
// Candidates that are fetched at a time to find a session that can leave.
constexpr size_t kFewCandidates = 16;

std::string TierOf(const absl::Status& status) {
  const ErrorMetadataMap metadata = ErrorMetadata(status);
  const auto it = metadata.find("tier");
  return it == metadata.end() ? std::string() : it->second;
}

// The error for a call that needs room. It does not name the sessions in the way, which may be another caller's.
absl::Status NothingBelowTakesStates(const std::string& tier) {
  return MakeError(
      absl::StatusCode::kUnavailable, reason::kTierUnavailable,
      "the device has no room, and no tier below it takes the states of idle sessions now; nothing is lost, "
      "try again later",
      {{"tier", tier.empty() ? std::string("lower") : tier}});
}

}  // namespace

std::string DeviceRoom::AffinityOf(const Session& session) {
  if (session.affinity().empty() || session.affinity() == session.id()) return "";
  return StrCat(session.principal(), std::string_view("\0", 1), session.affinity());
}

void DeviceRoom::Track(const std::shared_ptr<Session>& session, int32_t device, ByteCharge charge) {
  if (!charge.valid()) charge = options_.ledger.Charge(BytePool::kDevice, session->account(), BytesOf(*session));
  residents_.Add(session, device, AffinityOf(*session), std::move(charge));
}

int64_t DeviceRoom::budget_bytes() const {
  int64_t bytes = 0;
  for (const StateStore* store : options_.stores) bytes += store->options().budget_bytes;
  return bytes;
}

int64_t DeviceRoom::working_budget_bytes() const {
  int64_t bytes = 0;
  for (int32_t device = 0; device < devices(); ++device) {
    if (Works(device)) bytes += store(device).options().budget_bytes;
  }
  return bytes;
}

int64_t DeviceRoom::used_bytes() const {
  int64_t bytes = 0;
  for (const StateStore* store : options_.stores) bytes += store->used_bytes();
  return bytes;
}

int64_t DeviceRoom::BytesOf(const SessionSpec& spec) const {
  const auto layout = store(0).LayoutOf(spec.dims);
  return layout.ok() ? layout->slot_bytes() * static_cast<int64_t>(spec.layers.size()) : 0;
}

absl::StatusOr<RoomClaims> DeviceRoom::TryClaim(const RoomRequest& request) {
  RoomClaims claims;
  if (request.account != nullptr) {
    GDN_ASSIGN_OR_RETURN(claims.charge,
                         options_.ledger.ChargeWithinQuota(BytePool::kDevice, request.account, request.bytes));
  }
  GDN_ASSIGN_OR_RETURN(claims.slots, ClaimSlots(request));
  return claims;
}

void DeviceRoom::CountRefusal(const absl::Status& error) const {
  if (ErrorReason(error) == reason::kQuotaExceeded) options_.ledger.CountRefusal(Quota::kDeviceBytes);
}

absl::StatusOr<std::vector<SlotClaim>> DeviceRoom::ClaimSlots(const RoomRequest& request) {
  absl::Status refused;
  for (const int32_t device : PlacesFor(request)) {
    StateStore& store = *options_.stores[static_cast<size_t>(device)];
    auto claims = request.pool != nullptr ? store.ReserveIn(request.pool, request.count)
                                          : store.Reserve(request.dims, request.count);
    options_.copier.NoteDevice(device, claims.status());  // a new pool is zeroed by the device
    if (claims.ok()) return claims;
    // Prefer the error of a full device, because room can be made there.
    const bool says_more = !absl::IsResourceExhausted(refused) && absl::IsResourceExhausted(claims.status());
    if (refused.ok() || says_more) refused = claims.status();
  }
  if (!refused.ok()) return refused;
  return request.pool != nullptr ? options_.copier.CheckDevice(request.pool->device())
                                 : options_.copier.CheckAnyDevice();
}

std::vector<int32_t> DeviceRoom::PlacesFor(const RoomRequest& request) const {
  std::vector<int32_t> places;
  if (request.pool != nullptr) {
    if (Works(request.pool->device())) places.push_back(request.pool->device());
    return places;
  }
  std::vector<int64_t> room;  // by device
  for (int32_t device = 0; device < devices(); ++device) {
    room.push_back(store(device).options().budget_bytes - store(device).used_bytes());
    if (Works(device)) places.push_back(device);
  }
  std::ranges::stable_sort(places, std::ranges::greater(),
                           [&](int32_t device) { return room[static_cast<size_t>(device)]; });
  if (places.size() < 2 || request.affinity.empty()) return places;
  const std::optional<int32_t> device = residents_.DeviceOf(request.affinity);
  if (!device.has_value()) return places;
  const auto first = std::ranges::find(places, *device);
  if (first != places.end()) std::rotate(places.begin(), first, first + 1);
  return places;
}

int64_t DeviceRoom::LargestBudget(const std::vector<int32_t>& devices) const {
  int64_t bytes = 0;
  for (const int32_t device : devices) bytes = std::max(bytes, store(device).options().budget_bytes);
  return bytes;
}

std::vector<bool> DeviceRoom::DevicesFor(const RoomEffort& effort) const {
  std::vector<bool> may_be;
  for (int32_t device = 0; device < devices(); ++device) {
    may_be.push_back(Works(device) && (effort.device == RoomEffort::kAnyDevice || effort.device == device));
  }
  return may_be;
}

DeviceResidents::Held DeviceRoom::HeldFor(const RoomEffort& effort) const {
  DeviceResidents::Held sum;
  const std::vector<bool> may_be = DevicesFor(effort);
  for (int32_t device = 0; device < devices(); ++device) {
    if (!may_be[static_cast<size_t>(device)]) continue;
    const DeviceResidents::Held held = residents_.held(device);
    sum.sessions += held.sessions;
    sum.bytes += held.bytes;
  }
  return sum;
}

absl::StatusOr<RoomProgress> DeviceRoom::Advance(const RoomRequest& request, RoomEffort& effort, RoomClaims* claims) {
  effort.wanted_by = request.account.get();
  auto claimed = TryClaim(request);
  if (claimed.ok()) {
    *claims = *std::move(claimed);
    effort.device = RoomEffort::kAnyDevice;  // the call's other sessions may go to other devices
    return RoomProgress::kMade;
  }
  if (!CanMakeRoom(claimed.status())) return claimed.status();
  if (ErrorReason(claimed.status()) == reason::kQuotaExceeded) return MakeOwnRoom(claimed.status(), request, effort);
  GDN_ASSIGN_OR_RETURN(const StateLayout layout, store(0).LayoutOf(request.dims));
  if (request.count * layout.slot_bytes() > LargestBudget(PlacesFor(request)))
    return claimed.status();  // it never fits
  if (request.pool != nullptr) effort.device = request.pool->device();
  effort.no_room = claimed.status();
  if (SteadyNow() < nothing_moves_until_) return RoomProgress::kNothingMoves;
  const absl::Status evicted = EvictOne(effort);
  if (evicted.ok()) return RoomProgress::kMoved;
  if (!absl::IsNotFound(evicted)) return evicted;
  if (const absl::Status takes = options_.tiers.TakesStates(); !takes.ok()) {
    return absl::IsUnavailable(takes) ? NothingBelowTakesStates(TierOf(takes)) : effort.no_room;
  }
  // If all sessions there were found stuck, give up. If there are none, other arriving sessions have the room; wait for
  // them.
  const int64_t there = HeldFor(effort).sessions;
  if (there > 0 && there <= static_cast<int64_t>(effort.stuck.size())) return effort.error();
  if (effort.stuck.empty()) nothing_moves_until_ = SteadyNow() + kRoomPoll;
  if (request.pool == nullptr) effort.device = RoomEffort::kAnyDevice;
  return RoomProgress::kNothingMoves;
}

absl::StatusOr<RoomProgress> DeviceRoom::MakeOwnRoom(const absl::Status& refused, const RoomRequest& request,
                                                     RoomEffort& effort) {
  effort.no_room = refused;
  if (request.bytes > QuotaOf(*request.account)) return refused;  // it never fits
  const int32_t device = std::exchange(effort.device, RoomEffort::kAnyDevice);
  effort.account = request.account.get();
  const absl::Status evicted = EvictOne(effort);
  effort.account = nullptr;
  effort.device = device;
  if (evicted.ok()) return RoomProgress::kMoved;
  if (!absl::IsNotFound(evicted)) return evicted;
  if (!options_.tiers.TakesStates().ok()) return refused;
  return RoomProgress::kNothingMoves;  // its own sessions are in use, or no tier takes them
}

bool DeviceRoom::WantsAhead() const {
  const int64_t budget = working_budget_bytes();
  return !options_.tiers.empty() && HeldFor({}).bytes > budget - budget / kAheadPart;
}

bool DeviceRoom::EvictAhead() {
  RoomEffort effort;
  return EvictOne(effort, options_.clock.Now() - kIdle).ok();
}

absl::Status DeviceRoom::EvictOne(RoomEffort& effort, SteadyTime unused_since) {
  std::unordered_set<const Session*> tried = effort.stuck;
  std::vector<DeviceResidents::Candidate> candidates;
  // Usually the first candidate can leave. If many are in use, each further round fetches more.
  for (size_t most = kFewCandidates; options_.tiers.TakesStates().ok() || MayDropSnapshots(); most *= 4) {
    candidates = residents_.FirstToLeave({.devices = DevicesFor(effort),
                                          .account = effort.account,
                                          .wanted_by = effort.wanted_by,
                                          .unused_since = unused_since,
                                          .not_these = tried,
                                          .now = options_.clock.Now()},
                                         most);
    if (candidates.empty()) break;
    for (const auto& [session, device] : candidates) {
      const bool takes = options_.tiers.TakesStates().ok();
      if (!takes && !MayDropSnapshots()) break;
      tried.insert(session.get());
      if (!takes && !session->is_snapshot()) continue;
      if (BytesOf(*session) >= effort.too_large && !session->is_snapshot()) {
        effort.stuck.insert(session.get());
        continue;
      }
      SessionLease lease = session->TryLock();
      if (!lease.valid() || !lease.resident()) continue;
      const absl::Status evicted = EvictOrDrop(lease);
      if (evicted.ok()) {
        effort.device = device;  // go on making room on this device, not a little on each
        return evicted;
      }
      if (!Works(device)) {
        GDN_RETURN_IF_ERROR(effort.device == device ? options_.copier.CheckDevice(device)
                                                    : options_.copier.CheckAnyDevice());
        continue;
      }
      NoteStuck(*session, evicted, effort);
    }
  }
  return absl::NotFoundError("no session can be moved");
}

absl::Status DeviceRoom::EvictOrDrop(SessionLease& lease) {
  absl::Status evicted = options_.tiers.TakesStates();
  if (evicted.ok()) evicted = Evict(lease);
  const bool drop = absl::IsResourceExhausted(evicted) && lease.session()->is_snapshot() && drop_snapshot_;
  return drop ? drop_snapshot_(lease) : evicted;
}

void DeviceRoom::NoteStuck(const Session& session, const absl::Status& why, RoomEffort& effort) {
  effort.stuck.insert(&session);
  const bool of_quota = ErrorReason(why) == reason::kQuotaExceeded;  // concerns only the session's account
  if (absl::IsResourceExhausted(why) && !of_quota) effort.too_large = std::min(effort.too_large, BytesOf(session));
  if (absl::IsUnavailable(why)) effort.refused = NothingBelowTakesStates(TierOf(why));
  if (ErrorReason(why) == reason::kStatesTakenOver) effort.refused = why;  // concerns the store, not one session
  if (!residents_.NoteStuck(session, options_.clock.Now())) return;
  spdlog::warn("session id={} could not leave the device and stays there: {}", session.id(),
               std::string(why.message()));
}

absl::Status DeviceRoom::Evict(SessionLease& lease, size_t fastest) {
  const std::shared_ptr<Session> session = lease.session();
  if (!session->CheckNotLost().ok()) {  // the states on the device are not wanted any more
    lease.Unload();
    Forget(*session);
    return absl::OkStatus();
  }
  const ByteCharge copy = ChargeCopy(*session);
  GDN_ASSIGN_OR_RETURN(const SessionImagePtr image, options_.copier.CopyOut(lease, /*known=*/{}));
  GDN_RETURN_IF_ERROR(options_.tiers.Park(session->key(), image, fastest));
  const std::string place = options_.tiers.PlaceOf(session->key());
  if (place != "host") session->NoteDurable(lease.changes(), lease.counts(), session->Now());
  lease.Unload();
  Forget(*session);
  evictions_.fetch_add(1, std::memory_order_relaxed);
  evicted_bytes_.fetch_add(image->bytes(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status DeviceRoom::SendDown(SessionLease& lease, size_t fastest) {
  if (lease.resident()) return Evict(lease, fastest);
  const std::shared_ptr<Session> session = lease.session();
  // The copy in host memory is the session's newest state. A copy in a durable tier may be of an older epoch.
  const bool was_in_host = options_.tiers.PlaceOf(session->key()) == "host";
  const ByteCharge copy = ChargeCopy(*session);
  GDN_RETURN_IF_ERROR(options_.tiers.Lower(fastest, session->key()));
  if (was_in_host && options_.tiers.PlaceOf(session->key()) != "host") {
    session->NoteDurable(lease.changes(), lease.counts(), session->Now());
  }
  return absl::OkStatus();
}

}  // namespace gdn
