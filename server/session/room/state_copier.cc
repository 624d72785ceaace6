#include "server/session/room/state_copier.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

// Makes all copies, and returns the first error.
absl::Status CopyEach(SharedThreadPool* threads, size_t count, absl::FunctionRef<absl::Status(size_t)> copy) {
  std::vector<absl::Status> copied(count);
  ForEachIndex(threads, static_cast<int64_t>(count),
               [&](int64_t i) { copied[static_cast<size_t>(i)] = copy(static_cast<size_t>(i)); });
  for (const absl::Status& status : copied) GDN_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

// Returns 0 for a session without slots and claims, which is on no device. Such a session costs device 0 nothing.
int32_t DeviceOf(const SessionLease& lease) {
  const auto pool = lease.pool();
  return pool == nullptr ? 0 : pool->device();
}

}  // namespace

absl::Status StateCopier::CheckAnyDevice() const {
  absl::Status first;
  for (const StateDevice& device : options_.devices) {
    absl::Status status = device.health.status();
    if (status.ok()) return status;
    first.Update(std::move(status));
  }
  return first;
}

absl::Status StateCopier::Report(int32_t device, absl::Status status) {
  if (!status.ok()) failures_.fetch_add(1, std::memory_order_relaxed);
  return At(device).health.Report(std::move(status));
}

absl::StatusOr<SessionImagePtr> StateCopier::CopyOut(const SessionLease& lease, const BaseVersions& known,
                                                     Threads threads) {
  const int32_t device = DeviceOf(lease);
  GDN_RETURN_IF_ERROR(CheckDevice(device));
  auto image = std::make_shared<SessionImage>(
      lease.Describe(NumericsIdFor(At(device).backend.info().numerics_id, options_.base_dtype)));
  GDN_RETURN_IF_ERROR(
      Report(device, CopyLayersOut(*image, lease, known, threads == Threads::kAll ? options_.threads : nullptr)));
  return image;
}

absl::Status StateCopier::CopyLayersOut(SessionImage& image, const SessionLease& lease, const BaseVersions& known,
                                        SharedThreadPool* threads) {
  Backend& backend = At(DeviceOf(lease)).backend;
  image.transposed_base = backend.info().transposed_base;
  if (const auto slots = lease.pool(); slots != nullptr) image.layout = slots->view().layout;
  const std::vector<int32_t>& layers = lease.session()->spec().layers;
  std::vector<LayerSlots> slots;
  for (LayerImage& layer : image.layers) {
    const auto index =
        static_cast<size_t>(std::lower_bound(layers.begin(), layers.end(), layer.layer) - layers.begin());
    slots.push_back(lease.slots(index));
    const auto it = known.find(layer.layer);
    layer.has_base = it == known.end() || it->second != layer.base_version;
    GDN_ASSIGN_OR_RETURN(layer.slot, options_.memory.Take(static_cast<size_t>(image.layout.slot_bytes())));
  }
  return CopyEach(threads, slots.size(), [&](size_t i) { return CopyLayerOut(backend, image.layers[i], slots[i]); });
}

absl::Status StateCopier::CopyLayerOut(Backend& backend, const LayerImage& layer, const LayerSlots& from) {
  const StateLayout& layout = from.pool->layout;
  // A GPU copies on its own, and the faster the more it copies at once.
  const int64_t piece =
      backend.info().unified_memory ? static_cast<int64_t>(kGiveWayBytes / sizeof(float)) : layout.slot_floats();
  const auto part = [&](int32_t slot, int64_t begin, int64_t end) {
    for (int64_t next = begin; begin < end; begin = next) {
      next = std::min(begin + piece, end);
      GDN_RETURN_IF_ERROR(backend.TransferOut(layer.slot.floats() + begin, from.pool->slot(slot) + begin,
                                              static_cast<size_t>(next - begin) * sizeof(float)));
      GiveWay();
    }
    return absl::OkStatus();
  };
  const int64_t tail = layout.log_k_offset();  // the base comes first, all else follows
  if (layer.has_base && from.base_slot == from.slot) return part(from.slot, 0, layout.slot_floats());
  if (layer.has_base) GDN_RETURN_IF_ERROR(part(from.base_slot, 0, tail));
  return part(from.slot, tail, layout.slot_floats());
}

absl::Status StateCopier::CopyIn(const SessionImage& image, std::vector<SlotClaim> claims, SessionLease& lease) {
  const int32_t device = claims.empty() ? 0 : claims.front().pool()->device();
  GDN_RETURN_IF_ERROR(CheckDevice(device));
  return Report(device, Install(image, std::move(claims), lease));
}

absl::Status StateCopier::Install(const SessionImage& image, std::vector<SlotClaim> claims, SessionLease& lease) {
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
        (copied && image.transposed_base != At(slot.pool()->device()).backend.info().transposed_base)) {
      return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                       StrCat("a state of sessions/", lease.session()->id(), " is not in this server's layout"));
    }
    slots.push_back(std::move(slot));
  }
  GDN_RETURN_IF_ERROR(
      CopyEach(options_.threads, slots.size(), [&](size_t i) { return CopyLayerIn(image.layers[i], slots[i]); }));
  lease.Install(image, std::move(slots), std::move(left));
  return absl::OkStatus();
}

absl::Status StateCopier::CopyLayerIn(const LayerImage& layer, const SlotRef& slot) {
  Backend& backend = At(slot.pool()->device()).backend;
  const BackendInfo& info = backend.info();
  const StateLayout& layout = slot.view().layout;
  float* const device = slot.view().slot(slot.index());
  const auto bytes = static_cast<size_t>(layout.slot_bytes());
  if (layer.slot.valid()) return backend.TransferIn(device, layer.slot.floats(), bytes);
  if (info.unified_memory) {
    FillSlot(layout, info.transposed_base, layer.extent, layer.wire, device);
    return absl::OkStatus();
  }
  GDN_ASSIGN_OR_RETURN(const HostBlock block, options_.memory.Take(bytes));
  FillSlot(layout, info.transposed_base, layer.extent, layer.wire, block.floats());
  return backend.TransferIn(device, block.floats(), bytes);
}

}  // namespace gdn
