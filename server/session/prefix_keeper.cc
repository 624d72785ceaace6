#include "server/session/prefix_keeper.h"

#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

absl::Status PrefixMismatch(const Session& session, int32_t layer, std::string_view field, const std::string& found,
                            const std::string& expected, std::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPrefixMismatch,
                   StrCat("sessions/", session.id(), " layer ", layer, " ", message, "; nothing was kept"),
                   {{"session", StrCat("sessions/", session.id())},
                    {"layer", StrCat(layer)},
                    {"field", std::string(field)},
                    {"found", found},
                    {"expected", expected}});
}

absl::Status CheckClaim(const Session& session, const PrefixClaim& claim) {
  GDN_RETURN_IF_ERROR(CheckEpoch(session, claim.epoch));
  for (const LayerInfo& layer : session.Layers()) {
    if (layer.progress.token_count != claim.tokens) {
      return PrefixMismatch(session, layer.layer, "token_count", StrCat(layer.progress.token_count),
                            StrCat(claim.tokens),
                            StrCat("has seen ", layer.progress.token_count, " tokens, and the prefix has ",
                                   claim.tokens, ": prefill every layer to its end, and no further"));
    }
    if (layer.kind != claim.kind) return InputKindMismatch(session.id(), layer.layer, claim.kind, layer.kind);
    if (layer.calls == claim.calls) continue;
    if (layer.calls.only_prefills()) {
      return PrefixMismatch(session, layer.layer, "prefills", "other prefills", "one prefill a segment",
                            "has come here by other prefills than one for each segment, so that its bits are not "
                            "those of the prefix: cut the prompt where the prefills end");
    }
    return PrefixMismatch(session, layer.layer, "prefills", "other ways", "one prefill a segment",
                          "has not come here by this server's prefills alone (but by decodes, initial_states, an "
                          "import, a checkpoint, or over the disk or Redis)");
  }
  return absl::OkStatus();
}

// What a session that begins with it must not have.
void ForgetSession(SessionImage& image) {
  image.header = {};
  for (LayerImage& layer : image.layers) {
    layer.reply = nullptr;
    layer.base_version = 0;
  }
}

}  // namespace

void PrefixKeeper::Keep(const std::shared_ptr<Session>& session, const PrefixClaim& claim, const WaitLimit& limit,
                        std::function<void(absl::StatusOr<bool>)> done) {
  if (absl::Status alive = session->CheckAlive(); !alive.ok()) return done(std::move(alive));
  if (absl::Status fits = CheckClaim(*session, claim); !fits.ok()) return done(std::move(fits));
  PrefixIndex::Beginning beginning =
      parts_.index.Begin(claim.key, session->principal(), session->account(), parts_.room.BytesOf(*session));
  if (!beginning.place.begun()) return done(beginning.there);
  struct Work {
    PrefixClaim claim;
    PrefixIndex::Place place;
    SessionLease lease;
    std::function<void(absl::StatusOr<bool>)> done;

    // Nothing is left of the call when its client hears of it.
    void Finish(absl::StatusOr<bool> kept) {
      place.GiveUp();
      lease.Release();
      done(std::move(kept));
    }
  };
  auto work = std::make_shared<Work>(Work{claim, std::move(beginning.place), {}, std::move(done)});
  const auto copy = [this, work] {
    // It may have moved before it was locked.
    if (absl::Status fits = CheckClaim(*work->lease.session(), work->claim); !fits.ok()) return work->Finish(fits);
    absl::StatusOr<SessionImagePtr> image = parts_.copier.CopyOut(work->lease, /*known=*/{});
    if (!image.ok()) return work->Finish(image.status());
    ForgetSession(*std::const_pointer_cast<SessionImage>(*image));  // nobody else has it yet
    work->place.Keep(work->claim.tokens, *std::move(image));
    work->Finish(true);
  };
  parts_.residency.LockResident(session, limit, [this, work, copy](absl::StatusOr<SessionLease> lease) {
    if (!lease.ok()) return work->Finish(lease.status());
    work->lease = *std::move(lease);
    parts_.transfers.Post(copy, work->lease.session()->account()->turn());
  });
}

}  // namespace gdn
