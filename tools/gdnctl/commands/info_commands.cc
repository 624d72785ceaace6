// gdnctl info, gdnctl models.

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

namespace gdn {
namespace {

std::string FormatQuota(std::string_view name, int64_t value) {
  if (name.ends_with("-bytes")) return FormatBytes(value);
  if (name == "idle-ttl" || name == "max-lifetime") return absl::FormatDuration(absl::Nanoseconds(value));
  return absl::StrFormat("%d", value);
}

absl::StatusOr<int> RunInfo(const std::vector<std::string>&) {
  GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, ConnectByFlags()->GetServerInfo());
  return Show(info, [&] {
    const v1::Limits& limits = info.limits();
    absl::PrintF("server       gdn_server %s at %s\n", info.version(), absl::GetFlag(FLAGS_target));
    absl::PrintF("backend      %s", info.backend());
    if (info.threads() > 0) absl::PrintF(", %d threads", info.threads());
    absl::PrintF("\ndevice       %s\n", info.device());
    for (int i = 0; info.devices_size() > 1 && i < info.devices_size(); ++i) {
      const v1::DeviceInfo& device = info.devices(i);
      absl::PrintF("device %-5d %s: %d sessions, %s of %s%s\n", i, device.device(), device.session_count(),
                   FormatBytes(device.state_bytes_used()), FormatBytes(device.state_bytes()),
                   device.failure().empty() ? "" : "; FAILED: " + device.failure());
    }
    absl::PrintF("numerics id  %s\n", info.numerics_id());
    if (info.has_heads()) absl::PrintF("heads        %s of every model\n", FormatHeads(info.heads()));
    absl::PrintF("sessions     %d, %s of %s of state\n", info.session_count(), FormatBytes(info.state_bytes_used()),
                 FormatBytes(limits.state_bytes()));
    absl::PrintF(
        "limits       %s a message, %d sessions and %d draft tokens a Decode, %d queued steps, %s a stored reply\n",
        FormatBytes(limits.max_message_bytes()), limits.max_batch(), limits.max_draft(), limits.max_queued_steps(),
        FormatBytes(limits.max_stored_reply_bytes()));
    if (limits.shared_memory_bytes() > 0) {
      absl::PrintF("shared       %s of memory with clients on its host, at most %s a principal\n",
                   FormatBytes(info.shared_memory_bytes()), FormatBytes(limits.shared_memory_bytes()));
    }
    for (const v1::TierInfo& tier : info.tiers()) {
      absl::PrintF("tier         %-7s %d sessions, %s", tier.name(), tier.sessions(), FormatBytes(tier.used_bytes()));
      if (tier.limit_bytes() > 0) absl::PrintF(" of %s", FormatBytes(tier.limit_bytes()));
      absl::PrintF("; %d stores (%s), %d loads (%s), %d failures\n", tier.stores(), FormatBytes(tier.stored_bytes()),
                   tier.loads(), FormatBytes(tier.loaded_bytes()), tier.failures());
      if (!tier.problem().empty()) absl::PrintF("             %s\n", tier.problem());
    }
    if (info.has_prefixes()) {
      const v1::PrefixInfo& prefixes = info.prefixes();
      absl::PrintF("prefixes     %d, %s of %s; %d of %d sessions started from one, %d tokens skipped; %d evicted\n",
                   prefixes.entries(), FormatBytes(prefixes.used_bytes()), FormatBytes(prefixes.limit_bytes()),
                   prefixes.hits(), prefixes.hits() + prefixes.misses(), prefixes.tokens_skipped(),
                   prefixes.evictions());
    }
    if (const v1::SnapshotInfo& snapshots = info.snapshots(); snapshots.count() + snapshots.evicted() > 0) {
      absl::PrintF("snapshots    %d, %s of %s; %d evicted, %d damaged\n", snapshots.count(),
                   FormatBytes(snapshots.held_bytes()), FormatBytes(snapshots.limit_bytes()), snapshots.evicted(),
                   snapshots.damaged());
    }
    if (info.has_fleet()) {
      const v1::FleetInfo& fleet = info.fleet();
      absl::PrintF("fleet        node %s, lease of %s %s; %d sessions taken over (%d in a new epoch), %d handed over\n",
                   fleet.node(), absl::FormatDuration(absl::Milliseconds(fleet.lease_ms())),
                   fleet.lease_valid() ? "valid" : "RUN OUT: its sessions are refused", fleet.sessions_taken_over(),
                   fleet.sessions_in_new_epoch(), fleet.sessions_handed_over());
    }
    for (const v1::QuotaInfo& quota : info.quotas()) {
      absl::PrintF("quota        %-17s %s of %s\n", quota.name(), FormatQuota(quota.name(), quota.used()),
                   FormatQuota(quota.name(), quota.limit()));
    }
    if (info.tiers_size() > 0) {
      absl::PrintF("since start  %d checkpoints (%d failed), %d sessions recovered, %d expired, %s of stored replies\n",
                   info.checkpoints(), info.checkpoint_failures(), info.recovered_sessions(), info.expired_sessions(),
                   FormatBytes(info.stored_reply_bytes()));
    }
  });
}

// "1.2 GiB, in Q4_K, Q6_K".
std::string WeightsText(const v1::Model& model) {
  return StrCat(FormatBytes(model.weight_bytes()), ", in ", absl::StrJoin(model.weight_formats(), ", "));
}

// A line for each layer, for comparisons with another server's or with own weights.
void PrintDigests(const v1::Model& model) {
  if (model.layer_digests().empty()) return;
  absl::PrintF("  digests      XXH3-128 of %s\n", absl::StrJoin(model.digest_tensors(), ", "));
  for (const v1::LayerDigest& digest : model.layer_digests()) {
    absl::PrintF("  layer %-6d %s  %s, vectors %s%s\n", digest.layer(), digest.xxh3_128(), digest.format(),
                 digest.vector_format(), digest.has_adapter() ? "; without its adapter" : "");
  }
}

absl::StatusOr<int> RunModels(const std::vector<std::string>& names) {
  const auto client = ConnectByFlags();
  v1::ListModelsResponse models;
  if (names.empty()) {
    GDN_ASSIGN_OR_RETURN(const std::vector<v1::Model> all, client->ListModels());
    models.mutable_models()->Add(all.begin(), all.end());
  }
  for (const std::string& name : names) {
    GDN_ASSIGN_OR_RETURN(const std::string full_name, ToModelName(name));
    GDN_ASSIGN_OR_RETURN(*models.add_models(), client->GetModel(full_name));
  }
  return Show(models, [&] {
    for (const v1::Model& model : models.models()) {
      absl::PrintF("%s\n  family       %s\n  weights      %s\n  dims         %s\n", model.name(), model.family(),
                   WeightsText(model), FormatDims(model.dims()));
      if (model.has_heads()) {
        absl::PrintF("  heads        %s: partial sums, of the model %s\n", FormatHeads(model.heads()),
                     model.whole_fingerprint());
      }
      absl::PrintF("  GDN layers   %d of %d: %s\n  a session    %s of state\n  fingerprint  %s\n",
                   model.gdn_layers_size(), model.num_layers(), FormatRanges(model.gdn_layers()),
                   FormatBytes(model.state_bytes_per_session()), model.fingerprint());
      if (!names.empty()) PrintDigests(model);
    }
    if (models.models().empty()) absl::PrintF("The server has no models; it takes operator sessions.\n");
  });
}

}  // namespace

std::vector<Command> InfoCommands() {
  return {{.name = "info",
           .summary = "Show the server: version, backend, numerics, use and limits",
           .flags = {"json"},
           .run = RunInfo},
          {.name = "models",
           .arguments = "[NAME ...]",
           .summary = "Show the served models: dimensions, GDN layers, fingerprint",
           .details = "If you name models, the digest of each layer is shown too. Equal digests mean equal weights.\n",
           .flags = {"json"},
           .run = RunModels}};
}

}  // namespace gdn
