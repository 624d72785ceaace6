// gdn.h: states as files and as matrices.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "capi/handles.h"
#include "kernels/common/contract.h"
#include "kernels/slot_access.h"
#include "state_store/host_block_pool.h"
#include "state_store/state_file/encode.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"

namespace gdn::capi {
namespace {

InputKind KindOf(const gdn_pool& pool) {
  return pool.dims().conv_width > 0 ? InputKind::kProjected : InputKind::kDeltaRule;
}

SlotExtent ExtentOf(const gdn_pool& pool, int32_t slot) {
  return {.token_count = pool.token_counts[slot], .log_length = pool.log_lengths[slot]};
}

size_t SlotBytes(const gdn_pool& pool) { return static_cast<size_t>(pool.view.layout.slot_bytes()); }

// `blocks` outlives the image.
absl::StatusOr<SessionImagePtr> CopyOut(gdn_pool& pool, int32_t count, const int32_t* slots, HostBlockPool& blocks) {
  Backend& backend = *pool.context.backend;
  auto image = std::make_shared<SessionImage>();
  image->header.dims = pool.dims();
  image->header.layers.resize(static_cast<size_t>(count));
  std::iota(image->header.layers.begin(), image->header.layers.end(), 0);
  image->header.create_time = absl::Now();
  image->numerics_id = NumericsIdFor(backend.info().numerics_id, pool.view.layout.base_dtype());
  image->layout = pool.view.layout;
  image->transposed_base = backend.info().transposed_base;
  for (int32_t i = 0; i < count; ++i) {
    LayerImage& layer = image->layers.emplace_back();
    layer.layer = i;
    layer.extent = ExtentOf(pool, slots[i]);
    layer.kind = KindOf(pool);
    GDN_ASSIGN_OR_RETURN(layer.slot, blocks.Take(SlotBytes(pool)));
    GDN_RETURN_IF_ERROR(backend.CopyOut(layer.slot.floats(), pool.view.slot(slots[i]), SlotBytes(pool)));
  }
  GDN_RETURN_IF_ERROR(backend.Synchronize());
  return image;
}

absl::Status Export(gdn_pool& pool, int32_t count, const int32_t* slots, std::string& file) {
  GDN_RETURN_IF_ERROR(RequireAtLeast("gdn_state_export", "count", count, 1));
  GDN_RETURN_IF_ERROR(RequireSlots("gdn_state_export", pool, count, slots, /*distinct=*/false));
  GDN_RETURN_IF_ERROR(RequireStates("gdn_state_export", pool, count, slots));
  HostBlockPool blocks(*pool.context.backend, /*keep_bytes=*/0);
  GDN_ASSIGN_OR_RETURN(const EncodedStateFile encoded, [&]() -> absl::StatusOr<EncodedStateFile> {
    GDN_ASSIGN_OR_RETURN(SessionImagePtr image, CopyOut(pool, count, slots, blocks));
    return EncodeStateFile(std::move(image), {});
  }());
  file.reserve(static_cast<size_t>(encoded.bytes()));
  for (const std::string_view piece : encoded.pieces()) file.append(piece);
  return absl::OkStatus();
}

absl::Status Mismatch(std::string_view field, const std::string& message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                   absl::StrCat("gdn_state_import: ", message), {{"field", std::string(field)}});
}

absl::Status CheckFile(const gdn_pool& pool, int32_t count, const StateFile& file) {
  if (file.layers.size() != static_cast<size_t>(count)) {
    return Mismatch("layers", absl::StrCat("the file has states of ", file.layers.size(), " layers, and ", count,
                                           " slots are given; give a slot for each"));
  }
  if (file.base_dtype != pool.view.layout.base_dtype()) {
    return Mismatch(
        "base_dtype",
        absl::StrCat("the file's states are ", std::string(DTypeName(file.base_dtype)), ", and the pool's ",
                     std::string(DTypeName(pool.view.layout.base_dtype())), "; make a pool with that state_dtype"));
  }
  for (const StateFileLayer& layer : file.layers) {
    if (layer.extent.draft_length > 0) {
      return Mismatch("draft", absl::StrCat("layer ", layer.layer, " has ", layer.extent.draft_length,
                                            " tokens that wait to be accepted or dropped; do so before the export"));
    }
    if (layer.kind != InputKind::kNone && layer.kind != KindOf(pool)) {
      return Mismatch("kind",
                      absl::StrCat("layer ", layer.layer, " is of ", std::string(InputKindName(layer.kind)),
                                   " steps, and the pool's steps are ", std::string(InputKindName(KindOf(pool)))));
    }
  }
  return absl::OkStatus();
}

absl::Status Import(gdn_pool& pool, int32_t count, const int32_t* slots, std::string_view bytes) {
  Backend& backend = *pool.context.backend;
  GDN_RETURN_IF_ERROR(RequireSlots("gdn_state_import", pool, count, slots, /*distinct=*/true));
  GDN_ASSIGN_OR_RETURN(const StateFile file, ParseStateFile(bytes));
  GDN_RETURN_IF_ERROR(CheckFile(pool, count, file));
  GDN_ASSIGN_OR_RETURN(const SessionImage image, ReadImage(file, pool.view.layout, /*owner=*/nullptr));
  std::vector<float> slot(static_cast<size_t>(pool.view.layout.slot_floats()));
  for (int32_t i = 0; i < count; ++i) {
    const LayerImage& layer = image.layers[static_cast<size_t>(i)];
    FillSlot(pool.view.layout, backend.info().transposed_base, layer.extent, layer.wire, slot.data());
    pool.log_lengths[slots[i]] = kLostState;
    GDN_RETURN_IF_ERROR(backend.CopyIn(pool.view.slot(slots[i]), slot.data(), SlotBytes(pool)));
    pool.token_counts[slots[i]] = layer.extent.token_count;
    pool.log_lengths[slots[i]] = layer.extent.log_length;
  }
  return absl::OkStatus();
}

absl::Status Get(gdn_pool& pool, int32_t slot, float* matrices) {
  Backend& backend = *pool.context.backend;
  GDN_RETURN_IF_ERROR(RequireSlots("gdn_state_get", pool, 1, &slot, /*distinct=*/true));
  GDN_RETURN_IF_ERROR(RequireStates("gdn_state_get", pool, 1, &slot));
  const SlotExtent extent = ExtentOf(pool, slot);
  GDN_RETURN_IF_ERROR(CheckSlotExtent(pool.view.layout, extent));
  std::vector<float> copy(static_cast<size_t>(pool.view.layout.slot_floats()));
  GDN_RETURN_IF_ERROR(backend.CopyOut(copy.data(), pool.view.slot(slot), SlotBytes(pool)));
  GDN_RETURN_IF_ERROR(backend.Synchronize());
  std::vector<float> scratch;
  const SlotView view = ViewSlot(pool.view.layout, backend.info().transposed_base, copy.data(), extent, scratch);
  GDN_ASSIGN_OR_RETURN(const auto folded, FoldedBase(pool.view.layout, extent, view));
  std::copy(folded->begin(), folded->end(), matrices);
  return absl::OkStatus();
}

absl::Status Set(gdn_pool& pool, int32_t slot, const float* matrices, int64_t tokens) {
  GDN_RETURN_IF_ERROR(RequireSlots("gdn_state_set", pool, 1, &slot, /*distinct=*/true));
  GDN_RETURN_IF_ERROR(RequireAtLeast("gdn_state_set", "tokens", tokens, 0));
  const LayerDims& dims = pool.dims();
  SlotImage image;
  image.base.assign(matrices, matrices + dims.state_elements());
  if (dims.conv_width > 0) image.conv.resize(static_cast<size_t>(dims.conv_channels() * (dims.conv_width - 1)));
  pool.log_lengths[slot] = kLostState;
  GDN_RETURN_IF_ERROR(WriteSlot(*pool.context.backend, pool.view, slot, tokens, image));
  pool.token_counts[slot] = tokens;
  pool.log_lengths[slot] = 0;
  return absl::OkStatus();
}

}  // namespace
}  // namespace gdn::capi

using gdn::capi::AndWait;
using gdn::capi::Call;
using gdn::capi::RequireArgument;
using gdn::capi::WaitOn;

int gdn_state_export(gdn_pool* pool, int32_t count, const int32_t* slots, void* stream, gdn_bytes** file) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_state_export", "pool", pool));
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_state_export", "file", file));
    auto made = std::make_unique<gdn_bytes>();
    GDN_RETURN_IF_ERROR(
        AndWait(pool->context, stream, [&] { return gdn::capi::Export(*pool, count, slots, made->bytes); }));
    *file = made.release();
    return absl::OkStatus();
  });
}

const void* gdn_bytes_data(const gdn_bytes* bytes) { return bytes->bytes.data(); }

size_t gdn_bytes_size(const gdn_bytes* bytes) { return bytes->bytes.size(); }

void gdn_bytes_free(gdn_bytes* bytes) { delete bytes; }

int gdn_state_import(gdn_pool* pool, int32_t count, const int32_t* slots, const void* file, size_t bytes,
                     void* stream) {
  return WaitOn("gdn_state_import", pool, stream, [&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_state_import", "file", file));
    const std::string_view text(static_cast<const char*>(file), bytes);
    return gdn::capi::Import(*pool, count, slots, text);
  });
}

int gdn_state_get(gdn_pool* pool, int32_t slot, float* matrices, void* stream) {
  return WaitOn("gdn_state_get", pool, stream, [&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_state_get", "matrices", matrices));
    return gdn::capi::Get(*pool, slot, matrices);
  });
}

int gdn_state_set(gdn_pool* pool, int32_t slot, const float* matrices, int64_t tokens, void* stream) {
  return WaitOn("gdn_state_set", pool, stream, [&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_state_set", "matrices", matrices));
    return gdn::capi::Set(*pool, slot, matrices, tokens);
  });
}
