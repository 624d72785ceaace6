#include "server/session/session_errors.h"

#include <algorithm>
#include <string_view>

#include "base/bounded_text.h"
#include "base/error.h"
#include "base/name_rules.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/session/session.h"

namespace gdn {
namespace {

std::string NameOf(const std::string& id) { return StateName(id); }

absl::Status Mismatch(std::string_view field, const std::string& found, const std::string& expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                   StrCat("the state's ", field, " is ", found, ", the target's is ", expected),
                   {{"field", std::string(field)}, {"found", found}, {"expected", expected}});
}

}  // namespace

absl::Status SessionMaybeIn(const std::string& tier, const std::string& id) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                   StrCat("this server does not know '", NameOf(id), "' yet: the ", tier,
                          " tier, which may have the session, has not answered since the server started; try again"),
                   {{"tier", tier}, {"session", NameOf(id)}});
}

absl::Status SessionAwayIn(const std::string& tier, const std::string& id) {
  return MakeError(
      absl::StatusCode::kUnavailable, reason::kTierUnavailable,
      StrCat("the newest state of ", NameOf(id), " is in the ", tier,
             " tier, which does not answer this server; an older state is never used instead. Try again when the "
             "tier answers"),
      {{"tier", tier}, {"session", NameOf(id)}});
}

absl::Status SessionEnvironment::CheckOurs() const {
  const int64_t until = ours_until_.load(std::memory_order_acquire);
  if (until == kForEver || clock_.Now().ToNanos() < until) return absl::OkStatus();
  return NodeLeaseLapsed();
}

absl::Status LeaseNotFound(const std::string& id) {
  return MakeError(absl::StatusCode::kNotFound, reason::kLeaseNotFound,
                   StrCat("no lease named 'leases/", id,
                          "'; it may have ended because it was not renewed within its grace, and its sessions ended "
                          "with it; open a lease and create the sessions again"),
                   {{"lease", StrCat("leases/", id)}});
}

absl::Status LeaseExists(const std::string& id, absl::Duration found, absl::Duration expected) {
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kLeaseExists,
                   StrCat("leases/", id, " has a grace of ", absl::FormatDuration(found), ", not ",
                          absl::FormatDuration(expected), "; choose another id, or ask for that grace"),
                   {{"lease", StrCat("leases/", id)},
                    {"found", absl::FormatDuration(found)},
                    {"expected", absl::FormatDuration(expected)}});
}

absl::Status TooManyLeases(int64_t limit) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kTooManyLeases,
                   StrCat("you have ", limit,
                          " leases, the most that a caller may have; end leases that you do not use, or put more "
                          "sessions under each lease"),
                   {{"limit", StrCat(limit)}});
}

absl::Status NodeLeaseLapsed() {
  return MakeError(absl::StatusCode::kUnavailable, reason::kNodeLeaseLapsed,
                   "this server could not renew its lease at Redis in time (--node-lease), so it refuses calls for its "
                   "sessions: other servers may have taken them over; send the call again with the same request_id, "
                   "and another server may answer it");
}

absl::Status SessionMoved(const std::string& id) {
  return MakeError(
      absl::StatusCode::kUnavailable, reason::kSessionMoved,
      StrCat(NameOf(id), " has moved to another server, with its state and stored replies; send the call again"),
      {{"session", NameOf(id)}});
}

absl::Status SessionElsewhere(const std::string& id, const std::string& node) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kSessionElsewhere,
                   StrCat("server '", node, "' has ", NameOf(id),
                          " and did not hand it over in time; send the call again, and check the log of server '", node,
                          "' if it fails again"),
                   {{"session", NameOf(id)}, {"node", node}});
}

absl::Status CheckEpoch(const Session& session, const std::optional<int64_t>& epoch) {
  const int64_t found = session.epoch();
  if (!epoch.has_value() || *epoch == found) return absl::OkStatus();
  const std::vector<LayerInfo> layers = session.Layers();
  const auto least = std::min_element(layers.begin(), layers.end(), [](const LayerInfo& a, const LayerInfo& b) {
    return a.progress.token_count < b.progress.token_count;
  });
  return EpochMismatch(session.id(), found, *epoch, least == layers.end() ? 0 : least->progress.token_count);
}

absl::Status CheckStateFits(const SessionHeader& header, const std::vector<int32_t>& layers, const SessionSpec& spec) {
  const auto model_of = [](const std::string& fingerprint, const ModelSlice& slice) {
    return slice.heads.is_whole() ? fingerprint : slice.model_fingerprint;
  };
  if (header.slice.heads != spec.slice.heads &&
      model_of(header.fingerprint, header.slice) == model_of(spec.fingerprint, spec.slice)) {
    return Mismatch("heads", HeadSliceToString(header.slice.heads), HeadSliceToString(spec.slice.heads));
  }
  if (header.fingerprint != spec.fingerprint) {
    const auto shown = [](const std::string& fingerprint) {
      return fingerprint.empty() ? "none (operator)" : fingerprint;
    };
    const auto named = [&shown](const std::string& model, const std::string& fingerprint) {
      if (fingerprint.empty()) return std::string("an operator session");
      return StrCat(model.empty() ? "a model" : StrCat("model '", model, "'"), " (fingerprint ", shown(fingerprint),
                    ")");
    };
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
        StrCat("the state is of ", named(header.model, header.fingerprint), ", the target is ",
               named(spec.model, spec.fingerprint), "; name the model that the state is of"),
        {{"field", "model_fingerprint"}, {"found", shown(header.fingerprint)}, {"expected", shown(spec.fingerprint)}});
  }
  if (header.dims != spec.dims) return Mismatch("dims", LayerDimsToString(header.dims), LayerDimsToString(spec.dims));
  const auto check = [&spec](const std::vector<int32_t>& found) -> absl::Status {
    for (const int32_t layer : found) {
      if (std::binary_search(spec.layers.begin(), spec.layers.end(), layer)) continue;
      return Mismatch("layer", StrCat(layer),
                      StrCat("one of the layers that are served here, ", NumberRanges(spec.layers, kMostListBytes)));
    }
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(check(layers));
  // Layers without a state count too, or a session would lose them. Any operator has the layers 0, 1 and so on.
  return spec.model.empty() ? absl::OkStatus() : check(header.layers);
}

}  // namespace gdn
