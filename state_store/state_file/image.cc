#include "state_store/state_file/image.h"

#include <algorithm>
#include <utility>

#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "kernels/slot_codec.h"
#include "state_store/state_file/metadata.h"
#include "state_store/state_file/sealed_header.h"

namespace gdn {
namespace {

using namespace state_file;  // NOLINT: the other half of this file

absl::Status CheckBaseOf(const StateFile& full, const StateFile& delta) {
  if (!full.base_snapshot_id.empty()) {
    return Mismatch("base_snapshot_id", StrCat("snapshot ", full.snapshot_id, " is itself a delta, to ",
                                               full.base_snapshot_id, "; expected a full file"));
  }
  if (delta.base_snapshot_id.empty() || delta.base_snapshot_id != full.snapshot_id) {
    return Mismatch("base_snapshot_id", StrCat("the delta is one to snapshot '", delta.base_snapshot_id,
                                               "'; the full file is snapshot '", full.snapshot_id, "'"));
  }
  if (full.header.dims != delta.header.dims) {
    return Mismatch("dims", StrCat("the delta's dimensions are ", LayerDimsToString(delta.header.dims),
                                   ", and the full file's ", LayerDimsToString(full.header.dims)));
  }
  if (full.base_dtype != delta.base_dtype) {
    return Mismatch("base_dtype", StrCat("the delta's bases are ", DTypeName(delta.base_dtype),
                                         ", and the full file's ", DTypeName(full.base_dtype)));
  }
  // If a layer's log was not taken over, its base has changed.
  if (full.log_capacity != kLogCapacity || delta.log_capacity != kLogCapacity) {
    return Mismatch("log_capacity", StrCat("the files' log_capacity is ", full.log_capacity, " and ",
                                           delta.log_capacity, "; this build merges those of ", kLogCapacity));
  }
  return absl::OkStatus();
}

absl::Status NoBase(int32_t layer) {
  return Damaged(StrCat("the full file has no base of layer ", layer, ", which the delta leaves out"),
                 TensorName(layer, kBaseState));
}

}  // namespace

absl::Status CheckStateDtype(const StateFile& file, const StateLayout& layout) {
  if (file.layers.empty() || file.base_dtype == layout.base_dtype()) return absl::OkStatus();
  const std::string_view wanted = file.base_dtype == DType::kBF16 ? "bf16" : "float32";
  return Mismatch("base_dtype",
                  StrCat("the state's bases are ", DTypeName(file.base_dtype), ", and this server keeps ",
                         DTypeName(layout.base_dtype()),
                         " (--state-dtype): it would go on in other bits. It stays where it is; use a server with "
                         "--state-dtype=",
                         wanted,
                         ", or import an exported file with convert_state_dtype (gdnctl state import "
                         "--convert-state-dtype)"));
}

absl::StatusOr<SessionImage> ReadImage(const StateFile& file, const StateLayout& layout,
                                       std::shared_ptr<const void> owner, bool convert) {
  if (file.header.dims != layout.dims()) {
    return Mismatch("dims", StrCat("the state file's dimensions are ", LayerDimsToString(file.header.dims),
                                   "; expected ", LayerDimsToString(layout.dims())));
  }
  if (!convert) GDN_RETURN_IF_ERROR(CheckStateDtype(file, layout));
  std::vector<std::shared_ptr<const void>> converted;
  SessionImage image{
      .header = file.header, .numerics_id = file.numerics_id, .layout = layout, .layers = {}, .owner = nullptr};
  image.layers.reserve(file.layers.size());
  for (const StateFileLayer& layer : file.layers) {
    if (!layer.has_base) {
      return Mismatch("base_snapshot_id", StrCat("the state file is a delta to snapshot ", file.base_snapshot_id,
                                                 ": layer ", layer.layer, " has no base. Merge it with that one"));
    }
    GDN_RETURN_IF_ERROR(CheckSlotView(layout, layer.extent, layer.view));
    LayerImage& read = image.layers.emplace_back();
    read.layer = layer.layer;
    read.extent = layer.extent;
    read.kind = layer.kind;
    read.wire = layer.view;
    converted.push_back(ConvertBase(layout, read.wire));
    read.reply = layer.reply;
  }
  struct Owner {
    std::shared_ptr<const void> bytes;
    std::vector<std::shared_ptr<const std::vector<float>>> parsed;
    std::vector<std::shared_ptr<const void>> converted;
  };
  image.owner = std::make_shared<const Owner>(Owner{std::move(owner), file.converted, std::move(converted)});
  return image;
}

absl::Status CompleteDelta(const StateFile& full, StateFile& delta) {
  GDN_RETURN_IF_ERROR(CheckBaseOf(full, delta));
  for (StateFileLayer& layer : delta.layers) {
    if (layer.has_base) continue;
    const auto base = std::find_if(full.layers.begin(), full.layers.end(),
                                   [&layer](const StateFileLayer& l) { return l.layer == layer.layer; });
    if (base == full.layers.end()) return NoBase(layer.layer);
    layer.view.base = base->view.base;
    layer.view.base_bf16 = base->view.base_bf16;
    layer.has_base = true;
  }
  delta.converted.insert(delta.converted.end(), full.converted.begin(), full.converted.end());
  return absl::OkStatus();
}

absl::StatusOr<std::string> MergeDelta(std::string_view full, std::string_view delta) {
  GDN_ASSIGN_OR_RETURN(const StateFile full_state, ParseStateFile(full));
  GDN_ASSIGN_OR_RETURN(const StateFile delta_state, ParseStateFile(delta));
  GDN_RETURN_IF_ERROR(CheckBaseOf(full_state, delta_state));
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile full_file, SafetensorsFile::Parse(full));
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile delta_file, SafetensorsFile::Parse(delta));
  GDN_ASSIGN_OR_RETURN(const std::string text, RequiredText(full_file.metadata(), "checksums"));
  GDN_ASSIGN_OR_RETURN(Checksums full_checksums, ParseChecksums(text));
  GDN_ASSIGN_OR_RETURN(const std::string delta_text, RequiredText(delta_file.metadata(), "checksums"));
  GDN_ASSIGN_OR_RETURN(Checksums checksums, ParseChecksums(delta_text));
  for (const auto& [file, sums] : {std::pair(&full_file, &full_checksums), std::pair(&delta_file, &checksums)}) {
    // A file of version 1 may have checksums for some of its tensors only.
    for (const auto& [name, entry] : file->entries()) {
      if (sums->count(name) == 0) return DamagedTensor(name, "has no checksum");
    }
  }
  Metadata metadata = delta_file.metadata();
  metadata.erase("base_snapshot_id");
  metadata["snapshot_id"] = RandomId();

  std::vector<RawTensor> tensors;
  for (const StateFileLayer& layer : delta_state.layers) {
    for (const std::string_view part : kParts) {
      const std::string name = TensorName(layer.layer, part);
      const SafetensorsFile* from = delta_file.Contains(name) ? &delta_file : nullptr;
      std::string source = name;
      const bool has_log = layer.extent.log_length + layer.extent.draft_length > 0;
      if (!layer.has_base && part == (has_log ? kBaseState : kRecurrentState)) {
        from = &full_file;
        source = TensorName(layer.layer, kBaseState);
        if (!full_file.Contains(source)) source = TensorName(layer.layer, kRecurrentState);  // its log was empty
        if (!full_file.Contains(source)) return NoBase(layer.layer);
        checksums[name] = full_checksums.at(source);
      }
      if (from == nullptr) continue;
      const SafetensorsEntry& entry = from->entries().at(source);
      GDN_ASSIGN_OR_RETURN(const std::string_view data, from->Bytes(source));
      tensors.push_back({.name = name, .dtype = entry.dtype, .shape = entry.shape, .data = data});
    }
    if (layer.has_base) continue;
    const std::string key = StrCat(kLayerPrefix, layer.layer);
    GDN_ASSIGN_OR_RETURN(LayerEntry entry, ParseLayer(key, metadata.at(key)));
    entry.has_base = true;
    GDN_ASSIGN_OR_RETURN(metadata[key], LayerText(entry));
  }
  GDN_ASSIGN_OR_RETURN(std::string file, SealedHeader(tensors, std::move(metadata), checksums));
  size_t bytes = file.size();
  for (const RawTensor& tensor : tensors) bytes += tensor.data.size();
  file.reserve(bytes);
  for (const RawTensor& tensor : tensors) file.append(tensor.data);
  return file;
}

}  // namespace gdn
