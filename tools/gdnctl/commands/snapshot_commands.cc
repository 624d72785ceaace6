// gdnctl snapshots: list, delete.

#include <algorithm>

#include "absl/flags/declare.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/cpp/rpc_status.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

namespace gdn {
namespace {

std::string_view CauseName(v1::SnapshotLossCause cause) {
  return cause == v1::SNAPSHOT_LOSS_CAUSE_EVICTED ? "evicted" : "damaged";
}

absl::StatusOr<int> RunListSnapshots(const std::vector<std::string>&) {
  GDN_ASSIGN_OR_RETURN(const v1::ListSnapshotsResponse all, ConnectByFlags()->ListSnapshots());
  return Show(all, [&] {
    absl::PrintF("%-44s %10s %12s %12s  %-7s %-8s %s\n", "snapshot", "tokens", "state", "shared", "tier", "durable",
                 "created");
    for (const v1::Snapshot& snapshot : all.snapshots()) {
      int64_t tokens = 0;
      for (const v1::LayerState& layer : snapshot.layers()) tokens = std::max<int64_t>(tokens, layer.token_count());
      absl::PrintF("%-44s %10d %12s %12s  %-7s %-8s %s\n", snapshot.key(), tokens, FormatBytes(snapshot.state_bytes()),
                   FormatBytes(snapshot.shared_bytes()), FormatTier(snapshot.tier()),
                   snapshot.has_durable_time() ? "yes" : "no", FormatTimestamp(snapshot.create_time()));
    }
    for (const v1::LostSnapshot& lost : all.lost()) {
      absl::PrintF("lost: %s was %s at %s\n", lost.key(), CauseName(lost.cause()), FormatTimestamp(lost.lost_time()));
    }
    if (all.lost_incomplete()) absl::PrintF("lost: there were earlier losses, which the server no longer lists\n");
  });
}

absl::StatusOr<int> RunDeleteSnapshots(const std::vector<std::string>& keys) {
  GDN_ASSIGN_OR_RETURN(const v1::DeleteSnapshotsResponse deleted, ConnectByFlags()->DeleteSnapshots(keys));
  for (int i = 0; i < deleted.statuses_size(); ++i) {
    GDN_RETURN_IF_ERROR(StatusFromRpc(deleted.statuses(i)));
    absl::PrintF("deleted snapshot %s\n", keys[static_cast<size_t>(i)]);
  }
  return kExitOk;
}

}  // namespace

std::vector<Command> SnapshotCommands() {
  constexpr std::string_view kListSummary = "List your snapshots, and those that the server has lost";
  constexpr std::string_view kListDetails =
      "\"shared\" is the part of the state that is in device memory which other sessions use too.\n";
  return {{.name = "snapshots",
           .summary = kListSummary,
           .details = kListDetails,
           .flags = {"json"},
           .run = RunListSnapshots},
          {.name = "snapshots list",
           .summary = kListSummary,
           .details = kListDetails,
           .flags = {"json"},
           .run = RunListSnapshots},
          {.name = "snapshots delete",
           .arguments = "KEY [KEY ...]",
           .summary = "Delete snapshots and free their states",
           .run = RunDeleteSnapshots}};
}

}  // namespace gdn
