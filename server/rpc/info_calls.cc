// GetServerInfo, ListModels, GetModel.
#include <algorithm>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "server/fleet/fleet.h"
#include "server/rpc/calls.h"
#include "server/rpc/info_calls.h"
#include "server/rpc/session_calls.h"
#include "server/session/snapshots/snapshot_book.h"
#include "server/validation/names.h"
#include "server/validation/session_spec.h"
#include "server/validation/tensor.h"

namespace gdn {
namespace {

void FillHeads(const HeadSlice& heads, v1::HeadSlice* out) {
  out->set_first_value_head(heads.first);
  out->set_value_heads(heads.count);
  out->set_total_value_heads(heads.total);
}

void FillModel(const StateStore& store, const ServedModel& model, v1::Model* out) {
  out->set_name(ModelName(model.name));
  out->set_family(model.family);
  v1::LayerDims* dims = out->mutable_dims();
  dims->set_key_heads(model.dims.key_heads);
  dims->set_value_heads(model.dims.value_heads);
  dims->set_key_dim(model.dims.key_dim);
  dims->set_value_dim(model.dims.value_dim);
  dims->set_conv_width(model.dims.conv_width);
  dims->set_hidden_size(model.dims.hidden_size);
  dims->set_decay(ToProto(model.dims.decay));
  out->set_num_layers(model.num_layers);
  for (const auto& [index, weights] : model.layers) out->add_gdn_layers(index);
  out->mutable_all_gdn_layers()->Add(model.all_gdn_layers.begin(), model.all_gdn_layers.end());
  for (const LayerDigest& digest : model.layer_digests) {
    v1::LayerDigest* layer = out->add_layer_digests();
    layer->set_layer(digest.layer);
    layer->set_format(digest.format);
    layer->set_vector_format(digest.vector_format);
    layer->set_xxh3_128(digest.xxh3);
    layer->set_has_adapter(digest.has_adapter);
  }
  for (const std::string& tensor : model.digest_tensors) out->add_digest_tensors(tensor);
  out->set_weight_dtype(ToProto(model.weight_dtype));
  for (const std::string& format : model.weight_formats) out->add_weight_formats(format);
  out->set_weight_bytes(model.weight_bytes);
  out->set_fingerprint(model.fingerprint);
  out->set_whole_fingerprint(model.fingerprint);
  if (!model.slice.heads.is_whole()) {
    FillHeads(model.slice.heads, out->mutable_heads());
    out->set_whole_fingerprint(model.slice.model_fingerprint);
  }
  if (const auto layout = store.LayoutOf(model.dims); layout.ok()) {
    out->set_state_bytes_per_session(layout->slot_bytes() * static_cast<int64_t>(model.layers.size()));
  }
}

void FillTier(const TierUsage& usage, v1::TierInfo* out) {
  out->set_name(usage.name);
  out->set_limit_bytes(usage.limit_bytes);
  out->set_used_bytes(usage.used_bytes);
  out->set_sessions(usage.sessions);
  out->set_stores(usage.stores);
  out->set_loads(usage.loads);
  out->set_failures(usage.failures);
  out->set_stored_bytes(usage.stored_bytes);
  out->set_loaded_bytes(usage.loaded_bytes);
  out->set_problem(usage.problem);
}

void FillDevices(const InfoParts& info, v1::GetServerInfoResponse* response) {
  for (int32_t number = 0; number < info.engines.size(); ++number) {
    const StateDevice& device = info.devices[static_cast<size_t>(number)];
    const StateStore& store = info.states.room().store(number);
    v1::DeviceInfo* out = response->add_devices();
    out->set_device(device.backend.info().device);
    out->set_state_bytes(store.options().budget_bytes);
    out->set_state_bytes_used(store.used_bytes());
    out->set_session_count(info.states.room().sessions(number));
    if (const absl::Status status = device.health.status(); !status.ok())
      out->set_failure(std::string(status.message()));
  }
}

void FillFleet(const Fleet& fleet, v1::FleetInfo* out) {
  out->set_node(fleet.name());
  out->set_lease_ms(absl::ToInt64Milliseconds(fleet.lease().lease()));
  out->set_lease_valid(fleet.lease().valid());
  out->set_lease_lapses(fleet.lease().lapses());
  out->set_sessions_taken_over(fleet.arrivals().taken_over());
  out->set_sessions_in_new_epoch(fleet.arrivals().replayed());
  out->set_sessions_handed_over(fleet.departures().handed_over());
  out->set_sessions_lost(fleet.departures().lost());
}

void FillPrefixes(const PrefixIndex& prefixes, v1::PrefixInfo* out) {
  const PrefixCounts counts = prefixes.counts();
  out->set_limit_bytes(counts.limit_bytes);
  out->set_used_bytes(counts.used_bytes);
  out->set_entries(counts.entries);
  out->set_hits(counts.hits);
  out->set_misses(counts.misses);
  out->set_tokens_skipped(counts.tokens_skipped);
  out->set_evictions(counts.evictions);
  out->set_expired(counts.expired);
}

void FillSnapshots(const ByteLedger& ledger, const SnapshotBook& book, v1::SnapshotInfo* out) {
  out->set_limit_bytes(ledger.limit(BytePool::kSnapshots));
  out->set_held_bytes(ledger.held(BytePool::kSnapshots));
  out->set_count(book.size());
  out->set_evicted(book.evicted());
  out->set_damaged(book.damaged());
}

}  // namespace

absl::Status GetServerInfo(const InfoParts& info, const Caller& caller, const v1::GetServerInfoRequest& /*request*/,
                           v1::GetServerInfoResponse* response) {
  const BackendInfo& backend = info.devices.front().backend.info();
  response->set_version(info.version);
  response->set_backend(backend.name);
  response->set_device(backend.device);
  response->set_numerics_id(info.numerics_id);
  response->set_threads(backend.threads);
  v1::Limits* limits = response->mutable_limits();
  limits->set_max_message_bytes(info.limits.max_message_bytes);
  limits->set_max_draft(info.limits.max_draft);
  limits->set_max_batch(info.limits.max_batch);
  limits->set_state_bytes(info.states.room().budget_bytes());
  limits->set_max_stored_reply_bytes(info.limits.max_stored_reply_bytes);
  limits->set_max_queued_steps(info.max_queued_steps);
  response->set_state_bytes_used(info.states.room().used_bytes());
  response->set_session_count(info.states.sessions().sessions());
  limits->set_stored_reply_bytes(info.states.environment().replies().limit());
  if (const SharedRegions& regions = info.shared_regions; regions.offered()) {
    limits->set_shared_memory_bytes(std::min(regions.options().bytes_per_principal, regions.options().bytes));
    limits->set_shared_memory_regions(regions.options().regions_per_principal);
    response->set_shared_memory_bytes(regions.used_bytes());
  }
  const ResidencyCounters moves = info.states.residency().counters();
  FillTier({.name = "device",
            .limit_bytes = info.states.room().budget_bytes(),
            .used_bytes = info.states.room().used_bytes(),
            .sessions = info.states.room().sessions(),
            .stores = moves.returns,
            .loads = moves.evictions,
            .failures = moves.failures,
            .stored_bytes = moves.returned_bytes,
            .loaded_bytes = moves.evicted_bytes},
           response->add_tiers());
  for (const TierUsage& usage : info.states.tiers().usage()) FillTier(usage, response->add_tiers());
  response->set_checkpoints(info.states.checkpointer().made());
  response->set_checkpoint_failures(info.states.checkpointer().failed());
  response->set_recovered_sessions(info.recovered_sessions);
  response->set_expired_sessions(info.states.sessions().expired());
  response->set_stored_reply_bytes(info.states.environment().replies().bytes());
  FillDevices(info, response);
  for (const auto& use : info.common.access.ledger.QuotasOf(caller.account, info.rate_clock.Now().ToNanos())) {
    v1::QuotaInfo* quota = response->add_quotas();
    quota->set_name(std::string(QuotaName(use.quota)));
    quota->set_limit(use.limit);
    quota->set_used(use.used);
  }
  if (info.common.drain.progress().begun()) FillDrain(info.common, info.engines, response->mutable_drain());
  if (info.states.prefixes().on()) FillPrefixes(info.states.prefixes(), response->mutable_prefixes());
  FillSnapshots(info.common.access.ledger, info.states.environment().snapshots(), response->mutable_snapshots());
  if (info.common.lookup.fleet != nullptr) FillFleet(*info.common.lookup.fleet, response->mutable_fleet());
  // One flag sets it for all models, so the first one tells.
  if (const auto model = info.models.begin(); model != info.models.end() && !model->second.slice.heads.is_whole()) {
    FillHeads(model->second.slice.heads, response->mutable_heads());
  }
  return absl::OkStatus();
}

absl::Status ListModels(const InfoParts& info, const Caller& /*caller*/, const v1::ListModelsRequest& /*request*/,
                        v1::ListModelsResponse* response) {
  for (const auto& [name, model] : info.models) FillModel(info.states.store(), model, response->add_models());
  return absl::OkStatus();
}

absl::Status GetModel(const InfoParts& info, const Caller& /*caller*/, const v1::GetModelRequest& request,
                      v1::GetModelResponse* response) {
  GDN_ASSIGN_OR_RETURN(const ServedModel* model, FindModel(info.models, request.name()));
  FillModel(info.states.store(), *model, response->mutable_model());
  return absl::OkStatus();
}

}  // namespace gdn
