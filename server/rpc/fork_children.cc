#include "server/rpc/fork_children.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/task/status_macros.h"
#include "server/rpc/snapshot_calls.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

// Forks a parent that is locked and on the device. `claims` are enough for the parent and all children.
void Fork(StateService& states, SessionLease& lease, RoomClaims claims, Children& children) {
  const auto take = [&slots = claims.slots](size_t count) {
    std::vector<SlotClaim> taken(std::make_move_iterator(slots.end() - static_cast<std::ptrdiff_t>(count)),
                                 std::make_move_iterator(slots.end()));
    slots.resize(slots.size() - count);
    return taken;
  };
  const auto pool = lease.pool();
  const int32_t parent_device = pool == nullptr ? 0 : pool->device();
  for (size_t i = 0; i < children.creations.size(); ++i) {
    if (!children.creations[i].pending()) continue;
    auto own = take(static_cast<size_t>(lease.claims_to_share()));
    const bool writes = !IsSnapshotId(children.inits[i].id);
    auto its = take(writes ? children.inits[i].spec.layers.size() : 0);
    std::shared_ptr<Session> child = lease.Fork(children.inits[i], std::move(its), std::move(own));
    states.room().Track(child, parent_device, claims.charge.Split(states.room().BytesOf(*child)));
    children.creations[i].Replace(std::move(child));
  }
}

// Gives each pending child a copy of the parent's states, on any device, and leaves it locked. Releases the parent,
// because others may have to be moved for the room.
Task<absl::Status> Copy(StateService& states, SessionLease& parent, const Deadline& deadline, Children& children) {
  const ByteCharge copy = states.room().ChargeCopy(*parent.session());
  Task<absl::StatusOr<SessionImagePtr>> copied = states.residency().CopyBeginning(parent);
  GDN_CO_ASSIGN_OR_RETURN(const SessionImagePtr image, co_await std::move(copied));
  parent.Release();
  for (SessionCreation& creation : children.creations) {
    if (!creation.pending()) continue;
    GDN_CO_ASSIGN_OR_RETURN(SessionLease child,
                            co_await states.residency().Place(std::move(creation.lease()), image, deadline));
    creation.lease() = std::move(child);
  }
  co_return absl::OkStatus();
}

}  // namespace

int32_t Children::pending() const {
  return static_cast<int32_t>(std::ranges::count_if(creations, &SessionCreation::pending));
}

absl::Status CheckParent(const Session& parent, const ExpectedParent& expected) {
  GDN_RETURN_IF_ERROR(CheckEpoch(parent, expected.epoch));
  if (!expected.token_count.has_value()) return absl::OkStatus();
  for (const LayerInfo& layer : parent.Layers()) {
    if (layer.progress.token_count == *expected.token_count) continue;
    return TokenCountMismatch(parent.id(), layer.layer, layer.progress.token_count, *expected.token_count);
  }
  return absl::OkStatus();
}

Task<absl::Status> MakeChildren(const SessionParts& parts, const Caller& caller, std::shared_ptr<Session> parent,
                                ExpectedParent expected, Children& children) {
  if (children.pending() == 0) co_return absl::OkStatus();
  absl::StatusOr<SessionLease> lease = co_await parts.states.residency().LockResident(parent, caller.deadline);
  if (parent->is_snapshot() && absl::IsDataLoss(lease.status())) {
    Task<absl::Status> lost = LoseSnapshot(parts, parent);
    co_return co_await std::move(lost);
  }
  // It may have been evicted while the call waited for it.
  if (parent->is_snapshot() && absl::IsNotFound(lease.status())) {
    co_return SnapshotNotFound(parts, parent->principal(), KeyOf(*parent));
  }
  GDN_CO_RETURN_IF_ERROR(lease.status());
  GDN_CO_RETURN_IF_ERROR(CheckParent(*parent, expected));
  const SessionSpec& spec = parent->spec();
  const bool write = !IsSnapshotId(children.inits.front().id);
  const auto layers = static_cast<int32_t>(write ? spec.layers.size() : 0);
  const ByteAccountPtr account = children.inits.front().account;
  RoomRequest room{.dims = spec.dims,
                   .pool = lease->pool(),
                   .count = children.pending() * layers + lease->claims_to_share(),
                   .account = account,
                   .bytes = children.pending() * parts.states.room().BytesOf(spec)};
  absl::StatusOr<RoomClaims> claims =
      co_await parts.states.residency().Reserve(std::move(room), account, caller.deadline);
  const bool elsewhere =  // there is room, but in another of the device's pools
      absl::IsFailedPrecondition(claims.status()) && ErrorReason(claims.status()) == reason::kStateBudgetExhausted;
  if (elsewhere) {
    Task<absl::Status> copied = Copy(parts.states, *lease, caller.deadline, children);
    GDN_CO_RETURN_IF_ERROR(co_await std::move(copied));
  } else {
    GDN_CO_RETURN_IF_ERROR(claims.status());
    Fork(parts.states, *lease, *std::move(claims), children);
  }
  for (SessionCreation& creation : children.creations) creation.Publish();
  for (SessionCreation& creation : children.creations) creation.lease().Release();
  lease->Release();
  for (const SessionCreation& creation : children.creations) {
    if (parts.states.environment().on_progress) parts.states.environment().on_progress(creation.session());
  }
  co_return absl::OkStatus();
}

}  // namespace gdn
