// gdnctl state export, gdnctl state import.
#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/output_file.h"
#include "tools/gdnctl/print.h"

ABSL_DECLARE_FLAG(std::vector<std::string>, session);
ABSL_DECLARE_FLAG(std::string, in);
ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::vector<std::string>, operator);
ABSL_DECLARE_FLAG(std::string, id);
ABSL_DECLARE_FLAG(std::string, affinity);
ABSL_FLAG(bool, include_recurrent_state, false,
          "Also write each layer's state with its log folded in, for other readers.");

namespace gdn {
namespace {

absl::StatusOr<int> RunExport(const std::vector<std::string>&) {
  const std::vector<std::string> sessions = absl::GetFlag(FLAGS_session);
  if (sessions.size() != 1) return UsageError("--session with one id is needed");
  if (absl::GetFlag(FLAGS_out).empty()) return UsageError("--out is needed");
  v1::ExportStateRequest request;
  GDN_ASSIGN_OR_RETURN(*request.mutable_name(), SessionName(sessions[0]));
  request.set_include_recurrent_state(absl::GetFlag(FLAGS_include_recurrent_state));
  GDN_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(absl::GetFlag(FLAGS_out)));
  int64_t bytes = 0;
  GDN_RETURN_IF_ERROR(ConnectByFlags()->ExportState(request, [&](std::string_view piece) {
    bytes += static_cast<int64_t>(piece.size());
    return file.Append(piece);
  }));
  GDN_RETURN_IF_ERROR(file.Commit());
  absl::PrintF("%s: %s in '%s'\n", request.name(), FormatBytes(bytes), absl::GetFlag(FLAGS_out));
  return kExitOk;
}

absl::StatusOr<int> RunImport(const std::vector<std::string>&) {
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::vector<std::string> spec = absl::GetFlag(FLAGS_operator);
  if (absl::GetFlag(FLAGS_in).empty()) return UsageError("--in is needed");
  if (model.empty() == spec.empty()) return UsageError("one of --model and --operator is needed");
  v1::ImportStateRequest::Target target;
  if (!model.empty()) {
    GDN_ASSIGN_OR_RETURN(*target.mutable_model(), ModelName(model));
  } else {
    GDN_ASSIGN_OR_RETURN(*target.mutable_operator_(), ParseOperatorSpec(spec));
  }
  target.set_session_id(absl::GetFlag(FLAGS_id));
  target.set_affinity(absl::GetFlag(FLAGS_affinity));
  GDN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(absl::GetFlag(FLAGS_in)));
  const CallOptions call{.timeout = {}, .affinity = target.affinity()};
  GDN_ASSIGN_OR_RETURN(const v1::Session session, ConnectByFlags()->ImportState(target, file.bytes(), call));
  absl::PrintF("%s: %s of state from '%s'\n", session.name(), FormatBytes(session.state_bytes()),
               absl::GetFlag(FLAGS_in));
  return kExitOk;
}

}  // namespace

std::vector<Command> StateCommands() {
  return {{.name = "state export",
           .arguments = "",
           .summary = "Write a session's states to a safetensors file",
           .details = "Example: gdnctl state export --session chat-1 --out chat-1.safetensors\n",
           .flags = {"session", "out", "include_recurrent_state"},
           .run = RunExport},
          {.name = "state import",
           .arguments = "",
           .summary = "Make a session from such a file",
           .details = "Example: gdnctl state import --in chat-1.safetensors --model qwen --id chat-2\n",
           .flags = {"in", "model", "operator", "id", "affinity"},
           .run = RunImport}};
}

}  // namespace gdn
