#include "server/session/state_copy.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status Mismatch(std::string_view field, const std::string& found, const std::string& expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                   StrCat("the state's ", field, " is ", found, ", the target's is ", expected),
                   {{"field", std::string(field)}, {"found", found}, {"expected", expected}});
}

}  // namespace

absl::StatusOr<SessionImagePtr> CopyOut(Backend& backend, HostMemory& memory, const SessionLease& lease,
                                        const BaseVersions& known) {
  auto image = std::make_shared<SessionImage>(lease.Describe(backend.info().numerics_id));
  image->transposed_base = backend.info().transposed_base;
  if (const auto pool = lease.pool(); pool != nullptr) image->layout = pool->view().layout;
  const std::vector<int32_t>& layers = lease.session()->spec().layers;
  for (LayerImage& layer : image->layers) {
    const auto index =
        static_cast<size_t>(std::lower_bound(layers.begin(), layers.end(), layer.layer) - layers.begin());
    const LayerSlots slots = lease.slots(index);
    const StateLayout& layout = slots.pool->layout;
    const auto it = known.find(layer.layer);
    layer.has_base = it == known.end() || it->second != layer.base_version;
    GDN_ASSIGN_OR_RETURN(layer.slot, memory.Take(static_cast<size_t>(layout.slot_bytes())));
    const int64_t tail = layout.log_k_offset();  // the base comes first, all else behind it
    const auto copy = [&](int32_t slot, int64_t from, int64_t to) {
      return backend.TransferOut(layer.slot.floats() + from, slots.pool->slot(slot) + from,
                                 static_cast<size_t>(to - from) * sizeof(float));
    };
    if (layer.has_base && slots.base_slot == slots.slot) {
      GDN_RETURN_IF_ERROR(copy(slots.slot, 0, layout.slot_floats()));
      continue;
    }
    if (layer.has_base) GDN_RETURN_IF_ERROR(copy(slots.base_slot, 0, tail));
    GDN_RETURN_IF_ERROR(copy(slots.slot, tail, layout.slot_floats()));
  }
  return image;
}

absl::Status CopyIn(Backend& backend, const SessionImage& image, std::vector<SlotClaim> claims, SessionLease& lease,
                    ThreadPool* pool) {
  const std::vector<int32_t>& layers = lease.session()->spec().layers;
  std::vector<SlotRef> slots;
  std::vector<SlotClaim> left;
  size_t next = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (next == image.layers.size() || image.layers[next].layer != layers[i]) {
      left.push_back(std::move(claims[i]));
      continue;
    }
    const LayerImage& layer = image.layers[next++];
    SlotRef slot = std::move(claims[i]).Take();
    const StatePoolView& view = slot.view();
    if (view.layout != image.layout || image.transposed_base != backend.info().transposed_base || !layer.has_base) {
      return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                       StrCat("a state of sessions/", lease.session()->id(), " is not in this server's layout"));
    }
    slots.push_back(std::move(slot));
  }
  std::vector<absl::Status> copied(slots.size());
  ForEachIndex(pool, static_cast<int64_t>(slots.size()), [&](int64_t i) {
    const SlotRef& slot = slots[static_cast<size_t>(i)];
    copied[static_cast<size_t>(i)] =
        backend.TransferIn(slot.view().slot(slot.index()), image.layers[static_cast<size_t>(i)].slot.floats(),
                           static_cast<size_t>(slot.view().layout.slot_bytes()));
  });
  for (const absl::Status& status : copied) GDN_RETURN_IF_ERROR(status);
  lease.Install(image, std::move(slots), std::move(left));
  return absl::OkStatus();
}

absl::Status CheckStateFits(const SessionHeader& header, const std::vector<int32_t>& layers, const SessionSpec& spec) {
  if (header.fingerprint != spec.fingerprint) {
    const auto shown = [](const std::string& fingerprint) {
      return fingerprint.empty() ? "none (operator)" : fingerprint;
    };
    return Mismatch("model_fingerprint", shown(header.fingerprint), shown(spec.fingerprint));
  }
  if (header.dims != spec.dims) return Mismatch("dims", LayerDimsToString(header.dims), LayerDimsToString(spec.dims));
  for (const int32_t layer : layers) {
    if (!std::binary_search(spec.layers.begin(), spec.layers.end(), layer)) {
      return Mismatch("layer", StrCat(layer), "one of the target's Gated DeltaNet layers");
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
