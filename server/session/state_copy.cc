#include "server/session/state_copy.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/this_thread.h"

namespace gdn {
namespace {

absl::Status Mismatch(std::string_view field, const std::string& found, const std::string& expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                   StrCat("the state's ", field, " is ", found, ", the target's is ", expected),
                   {{"field", std::string(field)}, {"found", found}, {"expected", expected}});
}

// The first error of the copies, all of which are made.
absl::Status CopyEach(SharedThreadPool* pool, size_t count, absl::FunctionRef<absl::Status(size_t)> copy) {
  std::vector<absl::Status> copied(count);
  ForEachIndex(pool, static_cast<int64_t>(count),
               [&](int64_t i) { copied[static_cast<size_t>(i)] = copy(static_cast<size_t>(i)); });
  for (const absl::Status& status : copied) GDN_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SessionImagePtr> CopyOut(Backend& backend, HostBlockPool& memory, const SessionLease& lease,
                                        const BaseVersions& known, SharedThreadPool* pool) {
  auto image = std::make_shared<SessionImage>(lease.Describe(backend.info().numerics_id));
  image->transposed_base = backend.info().transposed_base;
  if (const auto slots = lease.pool(); slots != nullptr) image->layout = slots->view().layout;
  const std::vector<int32_t>& layers = lease.session()->spec().layers;
  std::vector<LayerSlots> slots;
  for (LayerImage& layer : image->layers) {
    const auto index =
        static_cast<size_t>(std::lower_bound(layers.begin(), layers.end(), layer.layer) - layers.begin());
    slots.push_back(lease.slots(index));
    const auto it = known.find(layer.layer);
    layer.has_base = it == known.end() || it->second != layer.base_version;
    GDN_ASSIGN_OR_RETURN(layer.slot, memory.Take(static_cast<size_t>(image->layout.slot_bytes())));
  }
  // A device copies by itself, the faster the more there is.
  const int64_t piece =
      backend.info().unified_memory ? static_cast<int64_t>(kGiveWayBytes / sizeof(float)) : image->layout.slot_floats();
  const auto copy = [&](const LayerImage& layer, const LayerSlots& from) -> absl::Status {
    const StateLayout& layout = from.pool->layout;
    const int64_t tail = layout.log_k_offset();  // the base comes first, all else behind it
    const auto part = [&](int32_t slot, int64_t begin, int64_t end) {
      for (int64_t next = begin; begin < end; begin = next) {
        next = std::min(begin + piece, end);
        GDN_RETURN_IF_ERROR(backend.TransferOut(layer.slot.floats() + begin, from.pool->slot(slot) + begin,
                                                static_cast<size_t>(next - begin) * sizeof(float)));
        GiveWay();
      }
      return absl::OkStatus();
    };
    if (layer.has_base && from.base_slot == from.slot) return part(from.slot, 0, layout.slot_floats());
    if (layer.has_base) GDN_RETURN_IF_ERROR(part(from.base_slot, 0, tail));
    return part(from.slot, tail, layout.slot_floats());
  };
  GDN_RETURN_IF_ERROR(CopyEach(pool, slots.size(), [&](size_t i) { return copy(image->layers[i], slots[i]); }));
  return image;
}

absl::Status CopyIn(Backend& backend, HostBlockPool& memory, const SessionImage& image, std::vector<SlotClaim> claims,
                    SessionLease& lease, SharedThreadPool* pool) {
  const BackendInfo& info = backend.info();
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
    const bool copied = layer.slot.valid();
    if (slot.view().layout != image.layout || !layer.has_base ||
        (copied && image.transposed_base != info.transposed_base)) {
      return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                       StrCat("a state of sessions/", lease.session()->id(), " is not in this server's layout"));
    }
    slots.push_back(std::move(slot));
  }
  const auto copy = [&](const LayerImage& layer, const SlotRef& slot) -> absl::Status {
    const StateLayout& layout = slot.view().layout;
    float* const device = slot.view().slot(slot.index());
    const auto bytes = static_cast<size_t>(layout.slot_bytes());
    if (layer.slot.valid()) return backend.TransferIn(device, layer.slot.floats(), bytes);
    if (info.unified_memory) {
      FillSlot(layout, info.transposed_base, layer.extent, layer.wire, device);
      return absl::OkStatus();
    }
    GDN_ASSIGN_OR_RETURN(const HostBlock block, memory.Take(bytes));
    FillSlot(layout, info.transposed_base, layer.extent, layer.wire, block.floats());
    return backend.TransferIn(device, block.floats(), bytes);
  };
  GDN_RETURN_IF_ERROR(CopyEach(pool, slots.size(), [&](size_t i) { return copy(image.layers[i], slots[i]); }));
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
