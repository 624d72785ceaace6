// Residency: states that come from the tiers to the device, once their room is claimed.
#include <utility>

#include "base/status_macros.h"
#include "server/session/foreign_state.h"
#include "server/session/residency.h"

namespace gdn {

void Residency::Bring(const RequestPtr& request) {
  size_t coming = 0;
  for (const Need& need : request->needs) coming += need.status.ok() && need.lease.valid() ? 1 : 0;
  if (coming == 0) return Finish(*request);
  request->coming = coming;
  ++bringing_;
  for (Need& need : request->needs) {
    if (need.status.ok() && need.lease.valid()) BringOne(request, need);
  }
}

void Residency::BringOne(const RequestPtr& request, Need& need) {
  const auto arrive = [this, request, &need] {
    need.status = Arrive(*request, need);
    if (!need.status.ok()) need.GiveUp();
    Arrived(request);
  };
  if (need.image != nullptr && need.image->layers.empty()) return arrive();
  // A state in host memory waits for no other that comes from a disk or a network, and may hang.
  const bool in_memory = need.image != nullptr || options_.tiers.RestsInMemory(need.lease.session()->key());
  (in_memory ? options_.memory_io : options_.io).Post(arrive, request->account->turn());
}

absl::Status Residency::Arrive(const Request& request, Need& need) {
  const std::shared_ptr<Session> session = need.lease.session();
  GDN_RETURN_IF_ERROR(request.limit.Check());
  // A session without layers has nothing anywhere, and is counted with the first device.
  const int32_t device = need.claims.slots.empty() ? 0 : need.claims.slots.front().pool()->device();
  GDN_RETURN_IF_ERROR(options_.copier.CheckDevice(device));
  ByteCharge copy;
  if (need.image == nullptr) {
    copy = options_.room.ChargeCopy(*session);
    absl::StatusOr<SessionImagePtr> image = options_.tiers.Fetch(session->key());
    if (!image.ok()) {
      fetch_failures_.fetch_add(1, std::memory_order_relaxed);
      return session->CheckAlive().ok() ? image.status() : session->CheckAlive();
    }
    GDN_RETURN_IF_ERROR(CheckIsStateOf(*session, **image));
    need.image = *std::move(image);
  }
  GDN_RETURN_IF_ERROR(options_.copier.CopyIn(*need.image, std::move(need.claims.slots), need.lease));
  if (!need.image->layers.empty()) {
    returns_.fetch_add(1, std::memory_order_relaxed);
    returned_bytes_.fetch_add(need.image->bytes(), std::memory_order_relaxed);
  }
  need.image = nullptr;
  options_.tiers.Release(session->key());
  options_.room.Track(session, device, std::move(need.claims.charge));
  return absl::OkStatus();
}

void Residency::Arrived(const RequestPtr& request) {
  if (request->coming.fetch_sub(1) != 1) return;
  --bringing_;
  Finish(*request);
  MoveIdleAhead();
}

void Residency::Finish(Request& request) {
  if (request.claims_done) {
    Need& need = request.needs.front();
    if (!need.status.ok()) return request.claims_done(need.status);
    return request.claims_done(std::move(need.claims));
  }
  if (request.lease_done) {
    Need& need = request.needs.front();
    if (!need.status.ok()) return request.lease_done(need.status);
    return request.lease_done(std::move(need.lease));
  }
  for (Need& need : request.needs) {
    if (need.status.ok()) {
      request.pins[need.index] = std::move(need.lease).IntoPin();
    } else {
      request.pins[need.index] = need.status;
    }
  }
  request.pins_done(std::move(request.pins));
}

}  // namespace gdn
