// gdnctl state export | import | fork | checkpoint | restore, gdnctl checkpoints, gdnctl sessions prefetch.

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/files/mapped_file.h"
#include "base/files/output_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/tensor_codec.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"
#include "tools/gdnctl/progress.h"
#include "tools/gdnctl/state_file.h"

ABSL_DECLARE_FLAG(bool, all);
ABSL_DECLARE_FLAG(std::string, in);
ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::vector<std::string>, operator);
ABSL_DECLARE_FLAG(std::string, id);
ABSL_DECLARE_FLAG(std::string, affinity);
ABSL_FLAG(bool, include_recurrent_state, false,
          "Also write each layer's state with its log folded in, for other programs.");
ABSL_FLAG(std::string, recurrent_state_dtype, "",
          "Dtype of the states of --include-recurrent-state, which it turns on: F32 or BF16.");
ABSL_FLAG(bool, convert_state_dtype, false,
          "Accept a file of a server with another --state-dtype, and convert its states (bf16 to float32 exactly, "
          "float32 to bf16 rounded).");
ABSL_FLAG(std::string, checkpoint, "",
          "Id of the checkpoint. Empty: the newest checkpoint, which the next one replaces.");

namespace gdn {
namespace {

absl::StatusOr<int> RunExport(const std::vector<std::string>&) {
  v1::ExportStateRequest request;
  GDN_ASSIGN_OR_RETURN(*request.mutable_name(), OneSession());
  if (absl::GetFlag(FLAGS_out).empty()) return UsageError("--out is needed");
  GDN_RETURN_IF_ERROR(SetEpoch(&request));
  request.set_include_recurrent_state(absl::GetFlag(FLAGS_include_recurrent_state));
  if (const std::string name = absl::GetFlag(FLAGS_recurrent_state_dtype); !name.empty()) {
    const absl::StatusOr<DType> dtype = ParseDType(name);
    if (!dtype.ok()) return UsageError(StrCat("--recurrent-state-dtype: ", dtype.status().message()));
    request.set_include_recurrent_state(true);
    request.set_recurrent_state_dtype(ToProtoDType(*dtype));
  }
  GDN_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(absl::GetFlag(FLAGS_out)));
  int64_t bytes = 0;
  {
    ProgressBar bar("export");
    CallOptions call;
    call.progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); };
    GDN_RETURN_IF_ERROR(ConnectByFlags()->ExportState(
        request,
        [&](std::string_view piece) {
          bytes += static_cast<int64_t>(piece.size());
          return file.Append(piece);
        },
        call));
  }
  GDN_RETURN_IF_ERROR(file.Commit());
  absl::PrintF("%s: %s in '%s'\n", request.name(), FormatBytes(bytes), absl::GetFlag(FLAGS_out));
  return kExitOk;
}

absl::StatusOr<int> RunImport(const std::vector<std::string>&) {
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::vector<std::string> spec = absl::GetFlag(FLAGS_operator);
  if (absl::GetFlag(FLAGS_in).empty()) return UsageError("--in is needed");
  if (!model.empty() && !spec.empty()) return UsageError("--model and --operator are both given, expected one of them");
  const std::unique_ptr<Client> client = ConnectByFlags();
  GDN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(absl::GetFlag(FLAGS_in)));
  v1::ImportStateRequest::Target target;
  if (!model.empty()) {
    GDN_ASSIGN_OR_RETURN(*target.mutable_model(), ToModelName(model));
  } else if (!spec.empty()) {
    GDN_ASSIGN_OR_RETURN(*target.mutable_operator_(), ParseOperatorSpec(spec));
  } else {
    const absl::StatusOr<StateFileReport> inspected = InspectStateFile(file.bytes());
    if (!inspected.ok()) return WithPrefix(inspected.status(), StrCat("'", absl::GetFlag(FLAGS_in), "'"));
    const StateFileReport& report = *inspected;
    std::vector<v1::Model> models;
    if (report.dims.conv_width() > 0) {
      GDN_ASSIGN_OR_RETURN(models, client->ListModels());
    }
    GDN_RETURN_IF_ERROR(SetTargetSpec(report, models, &target));
  }
  target.set_session_id(absl::GetFlag(FLAGS_id));
  target.set_affinity(absl::GetFlag(FLAGS_affinity));
  target.set_convert_state_dtype(absl::GetFlag(FLAGS_convert_state_dtype));
  v1::Session session;
  {
    ProgressBar bar("import");
    CallOptions call;
    call.affinity = target.affinity();
    call.progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); };
    absl::StatusOr<v1::Session> imported = client->ImportState(target, file.bytes(), call);
    if (!imported.ok()) return WithPrefix(imported.status(), StrCat("'", absl::GetFlag(FLAGS_in), "'"));
    session = *std::move(imported);
  }
  absl::PrintF("%s: %s of state from '%s'\n", session.name(), FormatBytes(session.state_bytes()),
               absl::GetFlag(FLAGS_in));
  return kExitOk;
}

void PrintLayers(const google::protobuf::RepeatedPtrField<v1::LayerState>& layers) {
  for (const v1::LayerState& layer : layers) {
    absl::PrintF("  layer %-4d %d tokens\n", layer.layer(), layer.token_count());
  }
}

absl::StatusOr<int> RunFork(const std::vector<std::string>& ids) {
  v1::ForkSessionRequest request;
  GDN_ASSIGN_OR_RETURN(*request.mutable_name(), OneSession());
  for (const std::string& id : ids) request.add_session_ids(id);
  if (ids.empty()) request.add_session_ids("");
  GDN_RETURN_IF_ERROR(SetEpoch(&request));
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Session> children, ConnectByFlags()->ForkSession(request));
  v1::ForkSessionResponse response;
  response.mutable_sessions()->Add(children.begin(), children.end());
  return Show(response, [&] {
    for (const v1::Session& child : children) absl::PrintF("%s from %s\n", child.name(), request.name());
  });
}

absl::StatusOr<int> RunCheckpoint(const std::vector<std::string>&) {
  v1::CheckpointSessionRequest request;
  GDN_ASSIGN_OR_RETURN(*request.mutable_name(), OneSession());
  request.set_checkpoint_id(absl::GetFlag(FLAGS_checkpoint));
  GDN_RETURN_IF_ERROR(SetEpoch(&request));
  GDN_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, ConnectByFlags()->CheckpointSession(request));
  return Show(checkpoint, [&] {
    absl::PrintF("%s: checkpoint%s of epoch %d, %s written%s\n", request.name(),
                 checkpoint.checkpoint_id().empty() ? "" : StrCat(" '", checkpoint.checkpoint_id(), "'"),
                 checkpoint.epoch(), FormatBytes(checkpoint.written_bytes()),
                 checkpoint.incremental() ? " (what changed)" : "");
    PrintLayers(checkpoint.layers());
  });
}

void PrintCheckpoints(const v1::ListCheckpointsResponse& list) {
  absl::PrintF("%-44s %10s %6s %12s  %s\n", "checkpoint", "tokens", "epoch", "stored", "created");
  for (const v1::Checkpoint& checkpoint : list.checkpoints()) {
    int64_t tokens = 0;
    for (const v1::LayerState& layer : checkpoint.layers()) tokens = std::max<int64_t>(tokens, layer.token_count());
    absl::PrintF("%-44s %10d %6d %12s  %s\n", checkpoint.checkpoint_id(), tokens, checkpoint.epoch(),
                 FormatBytes(checkpoint.written_bytes()), FormatTimestamp(checkpoint.create_time()));
  }
  absl::PrintF("%d of %s\n", list.checkpoints_size(), FormatBytes(list.stored_bytes()));
}

absl::StatusOr<v1::ListCheckpointsResponse> CheckpointsOf(Client& client, const std::string& session) {
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> checkpoints, client.ListCheckpoints(session));
  v1::ListCheckpointsResponse list;
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    *list.add_checkpoints() = checkpoint;
    list.set_stored_bytes(list.stored_bytes() + checkpoint.written_bytes());
  }
  return list;
}

absl::StatusOr<int> RunListCheckpoints(const std::vector<std::string>&) {
  const std::unique_ptr<Client> client = ConnectByFlags();
  if (!absl::GetFlag(FLAGS_all)) {
    GDN_ASSIGN_OR_RETURN(const std::string session, OneSession());
    GDN_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse list, CheckpointsOf(*client, session));
    return Show(list, [&] { PrintCheckpoints(list); });
  }
  if (absl::GetFlag(FLAGS_json)) return UsageError("--json shows one session: --session, and no --all");
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Session> sessions, client->ListSessions());
  for (const v1::Session& session : sessions) {
    const absl::StatusOr<v1::ListCheckpointsResponse> list = CheckpointsOf(*client, session.name());
    if (absl::IsNotFound(list.status())) continue;  // it has ended meanwhile
    GDN_RETURN_IF_ERROR(list.status());
    if (list->checkpoints().empty()) continue;
    absl::PrintF("%s\n", session.name());
    PrintCheckpoints(*list);
  }
  return kExitOk;
}

absl::StatusOr<int> RunDeleteCheckpoints(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::string session, OneSession());
  if (ids.empty()) return UsageError("the id of a checkpoint is needed");
  const std::unique_ptr<Client> client = ConnectByFlags();
  for (const std::string& id : ids) {
    GDN_RETURN_IF_ERROR(client->DeleteCheckpoint(session, id));
    absl::PrintF("deleted checkpoint '%s' of %s\n", id, session);
  }
  return kExitOk;
}

absl::StatusOr<int> RunRestore(const std::vector<std::string>&) {
  v1::RestoreCheckpointRequest request;
  GDN_ASSIGN_OR_RETURN(*request.mutable_name(), OneSession());
  request.set_checkpoint_id(absl::GetFlag(FLAGS_checkpoint));
  GDN_RETURN_IF_ERROR(SetEpoch(&request));
  GDN_ASSIGN_OR_RETURN(const v1::Session session, ConnectByFlags()->RestoreCheckpoint(request));
  return Show(session, [&] {
    absl::PrintF("%s: back at the checkpoint, epoch %d\n", session.name(), session.epoch());
    PrintLayers(session.layers());
  });
}

absl::StatusOr<int> RunPrefetch(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SessionNames(ids));
  GDN_ASSIGN_OR_RETURN(const v1::PrefetchSessionsResponse response, ConnectByFlags()->PrefetchSessions(names));
  absl::PrintF("%d on the device, %d on their way\n", response.resident(), response.started());
  return kExitOk;
}

}  // namespace

std::vector<Command> StateCommands() {
  constexpr std::string_view kListSummary = "List a session's named checkpoints and their sizes";
  constexpr std::string_view kListDetails =
      "The token count shown is that of the layer with the most tokens.\n"
      "Example: gdnctl checkpoints list --session chat\n"
      "         gdnctl checkpoints list --all\n";
  return {
      {.name = "state export",
       .summary = "Write a session's states to a safetensors file",
       .details = "Example: gdnctl state export --session chat-1 --out chat-1.safetensors\n",
       .flags = {"session", "out", "epoch", "include_recurrent_state", "recurrent_state_dtype", "progress"},
       .run = RunExport},
      {.name = "state import",
       .summary = "Create a session from a file of 'state export'",
       .details = "Without --model and --operator, the session gets the served model with the file's fingerprint,\n"
                  "or the file's operator. Move a session between two servers like this:\n"
                  "  gdnctl state export --target A:50061 --session chat --epoch 1 --out chat.safetensors\n"
                  "  gdnctl state import --target B:50061 --in chat.safetensors --id chat\n"
                  "  gdnctl sessions delete --target A:50061 chat\n"
                  "--epoch is the epoch that the session's user knows. A crash starts a new epoch, so a state that\n"
                  "lacks answered steps is not moved.\n",
       .flags = {"in", "model", "operator", "id", "affinity", "convert_state_dtype", "progress"},
       .run = RunImport},
      {.name = "state fork",
       .arguments = "[ID ...]",
       .summary = "Create sessions that continue from a session's present state",
       .details = "Each ID names a new session. Without ID the server creates one session and chooses its id.\n"
                  "Example: gdnctl state fork --session chat draft-a draft-b\n",
       .flags = {"session", "epoch", "json"},
       .run = RunFork},
      {.name = "state checkpoint",
       .summary = "Write a durable copy of a session's present state",
       .details = "A checkpoint with an id stays until you delete it or use the id again, or the session ends.\n"
                  "Example: gdnctl state checkpoint --session chat --checkpoint before-tools\n",
       .flags = {"session", "checkpoint", "epoch", "json"},
       .run = RunCheckpoint},
      {.name = "checkpoints",
       .summary = kListSummary,
       .details = kListDetails,
       .flags = {"session", "all", "json"},
       .run = RunListCheckpoints},
      {.name = "checkpoints list",
       .summary = kListSummary,
       .details = kListDetails,
       .flags = {"session", "all", "json"},
       .run = RunListCheckpoints},
      {.name = "checkpoints delete",
       .arguments = "ID [ID ...]",
       .summary = "Delete named checkpoints and free their bytes",
       .details = "Example: gdnctl checkpoints delete --session chat before-tools\n",
       .flags = {"session"},
       .run = RunDeleteCheckpoints},
      {.name = "state restore",
       .summary = "Set a session back to a checkpoint",
       .details = "The session's epoch rises, so that calls made for the old state are refused.\n"
                  "Example: gdnctl state restore --session chat --checkpoint before-tools\n",
       .flags = {"session", "checkpoint", "epoch", "json"},
       .run = RunRestore},
      {.name = "sessions prefetch",
       .arguments = "ID [ID ...]",
       .summary = "Load evicted sessions to the device before they are needed",
       .run = RunPrefetch}};
}

}  // namespace gdn
