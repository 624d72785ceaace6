#include "server/session/session_state.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status Mismatch(std::string_view field, const std::string& found, const std::string& expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                   StrCat("the state file's ", field, " is ", found, ", the target's is ", expected),
                   {{"field", std::string(field)}, {"found", found}, {"expected", expected}});
}

// The base with its log folded in, by way of a spare slot.
absl::StatusOr<std::vector<float>> ReadMaterialized(Backend& backend, const SlotReservation& slots, int32_t slot,
                                                    const LayerProgress& progress) {
  GDN_ASSIGN_OR_RETURN(const SlotLease aside, slots.TakeSpare());
  const int32_t destination = aside.index();
  GDN_RETURN_IF_ERROR(backend.MaterializeState(
      {.pool = slots.view(), .count = 1, .src = &slot, .dst = &destination, .log_lengths = &progress.log_length}));
  GDN_ASSIGN_OR_RETURN(SlotImage image, backend.ReadSlot(slots.view(), destination, 0, progress.token_count));
  return std::move(image.base);
}

}  // namespace

absl::StatusOr<std::string> ExportSession(Backend& backend, SessionLease& lease, bool include_recurrent_state) {
  const Session& session = lease.session();
  Snapshot snapshot;
  snapshot.dims = session.spec().dims;
  snapshot.model_fingerprint = session.spec().fingerprint;
  snapshot.numerics_id = backend.info().numerics_id;
  snapshot.layer_count = session.spec().layers.back() + 1;  // a hybrid model's layer indices have gaps
  const std::vector<LayerInfo> layers = session.Layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const int32_t slot = lease.slot(i);
    if (slot < 0) continue;
    const LayerProgress& progress = layers[i].progress;
    LayerSnapshot& layer = snapshot.layers.emplace_back();
    layer.layer = layers[i].layer;
    layer.token_count = progress.token_count;
    layer.log_length = progress.log_length;
    layer.input_kind = layers[i].kind;
    GDN_ASSIGN_OR_RETURN(layer.image,
                         backend.ReadSlot(session.slots().view(), slot, progress.log_length, progress.token_count));
    if (include_recurrent_state && progress.log_length > 0) {
      GDN_ASSIGN_OR_RETURN(layer.recurrent_state, ReadMaterialized(backend, session.slots(), slot, progress));
    }
  }
  return EncodeSnapshot(snapshot);
}

absl::Status CheckSnapshotFits(const Snapshot& snapshot, const SessionSpec& spec) {
  if (snapshot.model_fingerprint != spec.fingerprint) {
    const auto shown = [](const std::string& fingerprint) {
      return fingerprint.empty() ? "none (operator)" : fingerprint;
    };
    return Mismatch("model_fingerprint", shown(snapshot.model_fingerprint), shown(spec.fingerprint));
  }
  if (snapshot.dims != spec.dims)
    return Mismatch("dims", LayerDimsToString(snapshot.dims), LayerDimsToString(spec.dims));
  for (const LayerSnapshot& layer : snapshot.layers) {
    if (!std::binary_search(spec.layers.begin(), spec.layers.end(), layer.layer)) {
      return Mismatch("layer", StrCat(layer.layer), "one of the target's Gated DeltaNet layers");
    }
    if (layer.log_length >= kLogCapacity) {
      return Mismatch("log_length", StrCat(layer.log_length), StrCat("less than ", kLogCapacity));
    }
  }
  return absl::OkStatus();
}

absl::Status RestoreSession(Backend& backend, const Snapshot& snapshot, SessionLease& lease) {
  for (const LayerSnapshot& layer : snapshot.layers) {
    GDN_ASSIGN_OR_RETURN(const size_t index, lease.session().LayerIndex(layer.layer));
    GDN_RETURN_IF_ERROR(
        backend.WriteSlot(lease.session().slots().view(), lease.TakeSlot(index), layer.token_count, layer.image));
    lease.SetLayer(index, {.token_count = layer.token_count, .log_length = layer.log_length}, layer.input_kind);
  }
  return absl::OkStatus();
}

}  // namespace gdn
