#include "server/session/prefixes/prefix_keeper.h"

#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/status_macros.h"
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

}  // namespace

Task<absl::StatusOr<bool>> PrefixKeeper::Keep(std::shared_ptr<Session> session, PrefixClaim claim, Deadline deadline) {
  GDN_CO_RETURN_IF_ERROR(session->CheckAlive());
  GDN_CO_RETURN_IF_ERROR(CheckClaim(*session, claim));
  PrefixIndex::Beginning beginning =
      index_.Begin(claim.key, session->principal(), session->account(), parts_.room.BytesOf(*session));
  if (!beginning.place.begun()) co_return beginning.there;
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await residency_.LockResident(session, deadline));
  GDN_CO_RETURN_IF_ERROR(CheckClaim(*session, claim));  // the session may have advanced before it was locked
  GDN_CO_ASSIGN_OR_RETURN(SessionImagePtr image, co_await residency_.CopyBeginning(lease));
  lease.Release();
  beginning.place.Keep(claim.tokens, std::move(image));
  co_return true;
}

}  // namespace gdn
