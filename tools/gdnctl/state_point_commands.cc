// gdnctl state fork, gdnctl state checkpoint, gdnctl state restore, gdnctl sessions prefetch.

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

ABSL_FLAG(std::string, checkpoint, "", "A checkpoint's id; empty: the newest, which the next one replaces.");

namespace gdn {
namespace {

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
  GDN_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, ConnectByFlags()->CheckpointSession(request));
  return Show(checkpoint, [&] {
    absl::PrintF("%s: checkpoint%s of epoch %d, %s written%s\n", request.name(),
                 checkpoint.checkpoint_id().empty() ? "" : StrCat(" '", checkpoint.checkpoint_id(), "'"),
                 checkpoint.epoch(), FormatBytes(checkpoint.written_bytes()),
                 checkpoint.incremental() ? " (what changed)" : "");
    PrintLayers(checkpoint.layers());
  });
}

absl::StatusOr<int> RunRestore(const std::vector<std::string>&) {
  v1::RestoreCheckpointRequest request;
  GDN_ASSIGN_OR_RETURN(*request.mutable_name(), OneSession());
  request.set_checkpoint_id(absl::GetFlag(FLAGS_checkpoint));
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

std::vector<Command> StatePointCommands() {
  return {{.name = "state fork",
           .arguments = "[ID ...]",
           .summary = "Make sessions that go on from where one is",
           .details = "The ids are the children's; without one, a child gets an id of the server's.\n"
                      "Example: gdnctl state fork --session chat draft-a draft-b\n",
           .flags = {"session", "json"},
           .run = RunFork},
          {.name = "state checkpoint",
           .summary = "Make a session durable as it is now",
           .details = "A checkpoint with an id stays beside later ones.\n"
                      "Example: gdnctl state checkpoint --session chat --checkpoint before-tools\n",
           .flags = {"session", "checkpoint", "json"},
           .run = RunCheckpoint},
          {.name = "state restore",
           .summary = "Take a session back to a checkpoint",
           .details = "Its epoch rises, so that steps made for the state before are refused.\n"
                      "Example: gdnctl state restore --session chat --checkpoint before-tools\n",
           .flags = {"session", "checkpoint", "json"},
           .run = RunRestore},
          {.name = "sessions prefetch",
           .arguments = "ID [ID ...]",
           .summary = "Bring sessions back to the device before they are needed",
           .run = RunPrefetch}};
}

}  // namespace gdn
