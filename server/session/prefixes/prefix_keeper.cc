#include "server/session/prefixes/prefix_keeper.h"

#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task_queue_executor.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

absl::Status PrefixMismatch(const Session& session, int32_t layer, std::string_view field, const std::string& found,
                            const std::string& expected, std::string_view message, std::string_view remedy) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPrefixMismatch,
                   StrCat("sessions/", session.id(), " layer ", layer, " ", message, "; nothing was stored. ", remedy),
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
      return PrefixMismatch(
          session, layer.layer, "token_count", StrCat(layer.progress.token_count), StrCat(claim.tokens),
          StrCat("has seen ", layer.progress.token_count, " tokens, and the prefix has ", claim.tokens),
          "Prefill every layer to the prefix's end, and no further");
    }
    if (layer.kind != claim.kind) return InputKindMismatch(session.id(), layer.layer, claim.kind, layer.kind);
    if (layer.calls == claim.calls) continue;
    if (layer.calls.only_prefills()) {
      return PrefixMismatch(session, layer.layer, "prefills", "other prefills", "one prefill a segment",
                            "was prefilled in other pieces than the prefix's segments, so its state has other bits",
                            "End each segment where a prefill ended");
    }
    return PrefixMismatch(
        session, layer.layer, "prefills", "other ways", "one prefill a segment",
        "was not built by prefills of this server alone (it had decodes, initial_states, an import, a "
        "checkpoint, or was on disk or in Redis)",
        "Create a new session and prefill the prefix");
  }
  return absl::OkStatus();
}

// Removes the parts that a session that begins with the prefix must not get.
void ForgetSession(SessionImage& image) {
  image.header = {};
  for (LayerImage& layer : image.layers) {
    layer.reply = nullptr;
    layer.base_version = 0;
  }
}

}  // namespace

Task<absl::StatusOr<bool>> PrefixKeeper::Keep(std::shared_ptr<Session> session, PrefixClaim claim, Deadline deadline) {
  GDN_CO_RETURN_IF_ERROR(session->CheckAlive());
  GDN_CO_RETURN_IF_ERROR(CheckClaim(*session, claim));
  TaskQueueExecutor transfers(parts_.transfers, session->account()->turn(), parts_.executor);
  Executor& here = co_await ThisExecutor();
  PrefixIndex::Beginning beginning =
      index_.Begin(claim.key, session->principal(), session->account(), parts_.room.BytesOf(*session));
  if (!beginning.place.begun()) co_return beginning.there;
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await residency_.LockResident(session, deadline));
  co_await ResumeOn(transfers);
  const absl::Status kept = KeepLocked(lease, claim, beginning.place);
  lease.Release();
  co_await ReturnTo(here);
  GDN_CO_RETURN_IF_ERROR(kept);
  co_return true;
}

absl::Status PrefixKeeper::KeepLocked(SessionLease& lease, const PrefixClaim& claim, PrefixIndex::Place& place) {
  GDN_RETURN_IF_ERROR(CheckClaim(*lease.session(), claim));  // the session may have advanced before it was locked
  GDN_ASSIGN_OR_RETURN(SessionImagePtr image, parts_.copier.CopyOut(lease, /*known=*/{}));
  ForgetSession(*std::const_pointer_cast<SessionImage>(image));  // nobody else uses the image yet
  place.Keep(claim.tokens, std::move(image));
  return absl::OkStatus();
}

}  // namespace gdn
