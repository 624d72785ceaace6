// gdnctl sessions: list, create, show, delete.

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

ABSL_FLAG(std::string, model, "", "Model, by name.");
ABSL_FLAG(std::vector<std::string>, operator, {},
          "An operator session instead of a model: H,HV,K,V or H,HV,K,V,LAYERS.");
ABSL_FLAG(std::string, id, "", "Id of the new session; the server makes one where it is empty.");
ABSL_FLAG(std::string, affinity, "", "Routing key; sessions decoded in one call share one.");

namespace gdn {
namespace {

absl::StatusOr<int> RunList(const std::vector<std::string>&) {
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Session> sessions, ConnectByFlags()->ListSessions());
  v1::ListSessionsResponse all;
  all.mutable_sessions()->Add(sessions.begin(), sessions.end());
  return Show(all, [&] {
    absl::PrintF("%-44s %-32s %10s %12s  %s\n", "session", "of", "tokens", "state", "created");
    for (const v1::Session& session : sessions) {
      int64_t tokens = 0;  // layers of a sequence may be apart by a step
      for (const v1::LayerState& layer : session.layers()) tokens = std::max<int64_t>(tokens, layer.token_count());
      absl::PrintF("%-44s %-32s %10d %12s  %s\n", session.name(), FormatSpec(session), tokens,
                   FormatBytes(session.state_bytes()), FormatTimestamp(session.create_time()));
    }
  });
}

absl::StatusOr<int> RunCreate(const std::vector<std::string>&) {
  v1::CreateSessionRequest request;
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::vector<std::string> spec = absl::GetFlag(FLAGS_operator);
  if (model.empty() == spec.empty()) return UsageError("one of --model and --operator is needed");
  if (!model.empty()) {
    GDN_ASSIGN_OR_RETURN(*request.mutable_model(), ModelName(model));
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
    GDN_RETURN_IF_ERROR(client->DeleteSession(name));
    absl::PrintF("deleted %s\n", name);
  }
  return kExitOk;
}

}  // namespace

std::vector<Command> SessionCommands() {
  return {{.name = "sessions",
           .summary = "List the caller's sessions",
           .details = "The tokens shown are those of the layer that has seen most.\n",
           .flags = {"json"},
           .run = RunList},
          {.name = "sessions create",
           .summary = "Make a session of a model, or of a bare operator",
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
           .summary = "End sessions and free their states",
           .run = RunDelete}};
}

}  // namespace gdn
