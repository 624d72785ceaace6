// gdnctl sessions: list, create, show, delete, evict.

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

ABSL_FLAG(std::string, model, "", "Name of the model.");
ABSL_FLAG(std::vector<std::string>, operator, {},
          "Make an operator session instead: H,HV,K,V or H,HV,K,V,LAYERS. Add ,per-channel at the end if g has a K "
          "axis (KDA).");
ABSL_FLAG(std::string, id, "", "Id of the new session. Empty: the server chooses one.");
ABSL_FLAG(bool, all, false,
          "For sessions: list those of every caller, with their owners (for admins). For checkpoints: list those of "
          "all your sessions.");
ABSL_FLAG(std::string, tier, "",
          "Fastest tier that may hold the states: host, disk or redis. Empty: the fastest tier with room.");
ABSL_DECLARE_FLAG(std::string, subject);
ABSL_FLAG(std::string, affinity, "", "Routing key. Sessions that are decoded in one call share one.");

namespace gdn {
namespace {

absl::StatusOr<int> RunList(const std::vector<std::string>&) {
  const bool of_all = absl::GetFlag(FLAGS_all);
  const auto client = ConnectByFlags();
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Session> sessions,
                       of_all ? client->ListAllSessions() : client->ListSessions());
  v1::ListSessionsResponse all;
  all.mutable_sessions()->Add(sessions.begin(), sessions.end());
  return Show(all, [&] {
    if (of_all) absl::PrintF("%-32s ", "owner");
    absl::PrintF("%-44s %-32s %10s %12s  %-7s %s\n", "session", "of", "tokens", "state", "tier", "created");
    for (const v1::Session& session : sessions) {
      int64_t tokens = 0;  // layers of a sequence may be apart by a step
      for (const v1::LayerState& layer : session.layers()) tokens = std::max<int64_t>(tokens, layer.token_count());
      if (of_all) absl::PrintF("%-32s ", session.owner());
      absl::PrintF("%-44s %-32s %10d %12s  %-7s %s\n", session.name(), FormatSpec(session), tokens,
                   FormatBytes(session.state_bytes()), FormatTier(session.tier()),
                   FormatTimestamp(session.create_time()));
    }
  });
}

absl::StatusOr<int> RunCreate(const std::vector<std::string>&) {
  v1::CreateSessionRequest request;
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::vector<std::string> spec = absl::GetFlag(FLAGS_operator);
  if (model.empty() == spec.empty()) return UsageError("one of --model and --operator is needed");
  if (!model.empty()) {
    GDN_ASSIGN_OR_RETURN(*request.mutable_model(), ToModelName(model));
  } else {
    GDN_ASSIGN_OR_RETURN(*request.mutable_operator_(), ParseOperatorSpec(spec));
  }
  request.set_session_id(absl::GetFlag(FLAGS_id));
  request.set_affinity(absl::GetFlag(FLAGS_affinity));
  const CallOptions call{.timeout = {}, .affinity = request.affinity()};
  GDN_ASSIGN_OR_RETURN(const v1::Session session, ConnectByFlags()->CreateSession(request, call));
  GDN_RETURN_IF_ERROR(PrintSession(session));
  return kExitOk;
}

absl::StatusOr<int> RunShow(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SessionNames(ids));
  const auto client = ConnectByFlags();
  for (const std::string& name : names) {
    GDN_ASSIGN_OR_RETURN(const v1::Session session, client->GetSession(name));
    GDN_RETURN_IF_ERROR(PrintSession(session));
  }
  return kExitOk;
}

absl::StatusOr<int> RunDelete(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SessionNames(ids));
  const auto client = ConnectByFlags();
  for (const std::string& name : names) {
    v1::DeleteSessionRequest request;
    request.set_name(name);
    request.set_subject(absl::GetFlag(FLAGS_subject));
    GDN_RETURN_IF_ERROR(client->DeleteSession(request));
    absl::PrintF("deleted %s\n", name);
  }
  return kExitOk;
}

absl::StatusOr<v1::StateTier> TierByFlag() {
  const std::string name = absl::GetFlag(FLAGS_tier);
  if (name.empty()) return v1::STATE_TIER_UNSPECIFIED;
  for (const v1::StateTier tier : {v1::STATE_TIER_HOST, v1::STATE_TIER_DISK, v1::STATE_TIER_REDIS}) {
    if (name == FormatTier(tier)) return tier;
  }
  return UsageError(StrCat("--tier is '", name, "', expected host, disk or redis"));
}

absl::StatusOr<int> RunEvict(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SessionNames(ids));
  v1::EvictSessionRequest request;
  GDN_ASSIGN_OR_RETURN(const v1::StateTier tier, TierByFlag());
  request.set_tier(tier);
  request.set_subject(absl::GetFlag(FLAGS_subject));
  const auto client = ConnectByFlags();
  for (const std::string& name : names) {
    request.set_name(name);
    GDN_ASSIGN_OR_RETURN(const v1::Session session, client->EvictSession(request));
    absl::PrintF("evicted %s to %s\n", name, FormatTier(session.tier()));
  }
  return kExitOk;
}

}  // namespace

std::vector<Command> SessionCommands() {
  constexpr std::string_view kListSummary = "List your sessions, or with --all those of every caller";
  constexpr std::string_view kListDetails = "The token count shown is that of the layer with the most tokens.\n";
  return {
      {.name = "sessions", .summary = kListSummary, .details = kListDetails, .flags = {"all", "json"}, .run = RunList},
      {.name = "sessions list",
       .summary = kListSummary,
       .details = kListDetails,
       .flags = {"all", "json"},
       .run = RunList},
      {.name = "sessions create",
       .summary = "Create a session of a model, or of a bare operator",
       .details = "Example: gdnctl sessions create --model qwen --id chat-1\n"
                  "         gdnctl sessions create --operator 16,32,128,128\n",
       .flags = {"model", "operator", "id", "affinity", "json"},
       .run = RunCreate},
      {.name = "sessions show",
       .arguments = "ID [ID ...]",
       .summary = "Show a session and the token count of each layer",
       .flags = {"json"},
       .run = RunShow},
      {.name = "sessions delete",
       .arguments = "ID [ID ...]",
       .summary = "Delete sessions and free their states",
       .details = "Example: gdnctl sessions delete --subject alice chat-1\n",
       .flags = {"subject"},
       .run = RunDelete},
      {.name = "sessions evict",
       .arguments = "ID [ID ...]",
       .summary = "Evict sessions' states from the device now",
       .details = "Running steps finish first. The next step loads the states again.\n"
                  "Example: gdnctl sessions evict --subject alice --tier disk chat-1\n",
       .flags = {"subject", "tier"},
       .run = RunEvict}};
}

}  // namespace gdn
