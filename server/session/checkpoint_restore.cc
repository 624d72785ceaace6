// The part of a Checkpointer that works with the checkpoints that there are: lists them, deletes one, goes back to one.
#include <string>
#include <utility>

#include "base/count_limits.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/session/checkpointer.h"
#include "server/session/session_errors.h"

namespace gdn {

void Checkpointer::List(const std::shared_ptr<Session>& session,
                        std::function<void(absl::StatusOr<std::vector<StoredSession>>)> done) {
  if (parts_.tiers.durable() == nullptr) return done(NoDurableTier());
  const auto list = [this, open = Open(), session, done = std::move(done)] {
    const absl::Status alive = session->CheckRestorable();
    done(alive.ok() ? parts_.tiers.ListCheckpoints(session->key()) : alive);
  };
  parts_.transfers.Post(list, session->account()->turn());
}

void Checkpointer::Delete(const std::shared_ptr<Session>& session, const std::string& checkpoint_id,
                          std::function<void(absl::Status)> done) {
  if (parts_.tiers.durable() == nullptr) return done(NoDurableTier());
  const auto erase = [this, open = Open(), session, checkpoint_id, done = std::move(done)] {
    StateKey key = session->key();
    key.checkpoint = checkpoint_id;
    const absl::Status alive = session->CheckAlive();
    done(alive.ok() ? parts_.tiers.EraseCheckpoint(key) : alive);
  };
  parts_.transfers.Post(erase, session->account()->turn());
}

void Checkpointer::Restore(const std::shared_ptr<Session>& session, const std::string& checkpoint_id,
                           std::function<void(absl::Status)> done, const WaitLimit& limit,
                           const std::optional<int64_t>& epoch) {
  if (parts_.tiers.durable() == nullptr) {
    const absl::Status lost = session->CheckNotLost();
    return done(lost.ok() ? NoDurableTier() : lost);
  }
  session->Lock([this, open = Open(), checkpoint_id, done = std::move(done), limit, epoch](SessionLease lease) {
    if (absl::Status alive = lease.session()->CheckRestorable(); !alive.ok()) return done(std::move(alive));
    if (absl::Status other = CheckEpoch(*lease.session(), epoch); !other.ok()) {
      lease.Release();
      return done(std::move(other));
    }
    const Turn turn = lease.session()->account()->turn();
    auto shared = std::make_shared<SessionLease>(std::move(lease));
    const auto restore = [this, open, checkpoint_id, done, limit, shared] {
      if (absl::Status over = limit.Check(); !over.ok()) {
        shared->Release();
        return done(over);
      }
      RestoreLocked(std::move(*shared), checkpoint_id, done);
    };
    parts_.transfers.Post(restore, turn);
  });
}

void Checkpointer::RestoreLocked(SessionLease lease, const std::string& checkpoint_id,
                                 const std::function<void(absl::Status)>& done) {
  const std::shared_ptr<Session> session = lease.session();
  TierStack& tiers = parts_.tiers;
  StateKey key = session->key();
  const auto restore = [&]() -> absl::Status {
    if (session->epoch() >= kMaxEpoch) return EpochLimit(session->id(), session->epoch());
    key.checkpoint = checkpoint_id;
    const ByteCharge copy = parts_.room.ChargeCopy(*session);
    absl::StatusOr<SessionImagePtr> image = tiers.FetchCheckpoint(key);
    key.checkpoint.clear();
    if (absl::IsNotFound(image.status())) {
      return MakeError(absl::StatusCode::kNotFound, reason::kCheckpointNotFound,
                       checkpoint_id.empty()
                           ? StrCat("sessions/", session->id(), " has no checkpoint yet; call CheckpointSession first")
                           : StrCat("sessions/", session->id(), " has no checkpoint '", checkpoint_id, "'"),
                       {{"session", StrCat("sessions/", session->id())}, {"checkpoint", checkpoint_id}});
    }
    GDN_RETURN_IF_ERROR(image.status());
    std::vector<int32_t> layers;
    for (const LayerImage& layer : (*image)->layers) layers.push_back(layer.layer);
    GDN_RETURN_IF_ERROR(CheckStateFits((*image)->header, layers, session->spec()));
    // Just loaded, so nobody else has it yet.
    SessionHeader& header = std::const_pointer_cast<SessionImage>(*image)->header;
    header.epoch = session->epoch() + 1;
    header.changes = static_cast<int64_t>(lease.changes());
    header.create_time = session->create_time();
    // Durable as restored before it is restored: a crash must not bring back what was rolled back.
    GDN_RETURN_IF_ERROR(tiers.Checkpoint(key, *image).status());
    if (lease.resident()) {
      lease.Unload();
      parts_.room.Forget(*session);
    }
    tiers.Release(key);
    tiers.RestAtCheckpoint(key, (*image)->bytes());
    lease.InstallParked(**image);
    lease.Restored((*image)->header.epoch);
    session->NoteDurable(lease.changes(), lease.counts(), session->Now());
    return absl::OkStatus();
  };
  absl::Status status = restore();
  lease.Release();
  done(std::move(status));
}

}  // namespace gdn
