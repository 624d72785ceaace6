#include "state_store/state_file/encode.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "kernels/backend.h"
#include "kernels/slot_codec.h"
#include "state_store/state_file/metadata.h"
#include "state_store/state_file/sealed_header.h"

namespace gdn {
namespace {

using namespace state_file;  // NOLINT: the other half of this file

std::string_view Bytes(absl::Span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

absl::Status Unfit(int32_t layer, std::string_view message) {
  return absl::InvalidArgumentError(StrCat("layer ", layer, " ", message));
}

absl::Status ValidateLayer(const SessionImage& image, const LayerImage& layer, int32_t previous) {
  const std::vector<int32_t>& layers = image.header.layers;
  const bool known = layers.empty() || std::binary_search(layers.begin(), layers.end(), layer.layer);
  if (layer.layer <= previous || layer.layer >= kMaxLayerCount || !known) {
    return Unfit(layer.layer, StrCat("follows layer ", previous, "; expected ascending layers of the session's"));
  }
  const SlotExtent& extent = layer.extent;
  if (extent.log_length < 0 || extent.log_length >= kLogCapacity || extent.token_count < extent.log_length) {
    return Unfit(layer.layer, StrCat("has ", extent.log_length, " logged of ", extent.token_count,
                                     " tokens; expected fewer than ", kLogCapacity));
  }
  if (extent.draft_length < 0 || extent.draft_length > image.layout.max_draft()) {
    return Unfit(layer.layer,
                 StrCat("has a draft of ", extent.draft_length, "; expected 0 to ", image.layout.max_draft()));
  }
  GDN_RETURN_IF_ERROR(CheckSlotExtent(image.layout, extent));
  if (!layer.slot.valid()) return CheckSlotView(image.layout, extent, layer.wire);
  if (layer.slot.bytes() != static_cast<size_t>(image.layout.slot_bytes())) {
    return Unfit(layer.layer,
                 StrCat("has a slot of ", layer.slot.bytes(), " bytes; the layout's has ", image.layout.slot_bytes()));
  }
  return absl::OkStatus();
}

// Collects a file's tensors, their metadata, and the buffers that they view.
class FileParts {
 public:
  FileParts(const SessionImage& image, const StateFileOptions& options) : image_(image), options_(options) {}

  // Converts every layer to wire order. If the backend stores another order, this is most of the work.
  void View(SharedThreadPool* pool) {
    views_.resize(image_.layers.size());
    ForEachIndex(pool, static_cast<int64_t>(views_.size()), [this](int64_t i) {
      const LayerImage& layer = image_.layers[static_cast<size_t>(i)];
      const auto scratch = std::make_shared<std::vector<float>>();
      views_[static_cast<size_t>(i)] = {
          .view = ViewLayer(image_, layer, /*base=*/HasBase(layer) || IsFolded(layer), *scratch), .scratch = scratch};
    });
  }

  absl::Status Add(size_t index) {
    const LayerImage& layer = image_.layers[index];
    const SlotExtent& extent = layer.extent;
    const bool has_base = HasBase(layer);
    if (!has_base && options_.base_snapshot_id.empty()) {
      return Unfit(layer.layer, "has no base; only a delta may leave it out");
    }
    const bool fold = IsFolded(layer);
    if (fold && !layer.has_base) return Unfit(layer.layer, "has no base to make a recurrent_state of");
    if (!extent.draft_parents.empty()) metadata_["format_version"] = kFormatVersionTree;
    LayerEntry entry{.extent = extent, .kind = layer.kind, .has_base = has_base, .reply = std::nullopt};

    const SlotView& view = views_[index].view;
    owned_.push_back(views_[index].scratch);
    if (image_.layout.dims().conv_width > 0) AddFloats(layer, kConvState, view.conv);
    if (!view.draft_conv.empty()) AddFloats(layer, kDraftConvState, view.draft_conv);
    const bool has_log = extent.log_length + extent.draft_length > 0;
    if (fold) {
      GDN_ASSIGN_OR_RETURN(auto folded, FoldedBase(image_.layout, extent, view));
      AddConverted(layer, std::move(folded));
    }
    if (has_base) AddBase(layer, has_log ? kBaseState : kRecurrentState, view);
    if (has_log) {
      for (const auto& [part, values] : kLogParts) AddFloats(layer, part, view.*values);
    }
    if (layer.reply != nullptr) entry.reply = *layer.reply;
    if (layer.reply != nullptr && !layer.reply->output_dropped) {
      const std::string_view output = layer.reply->output;
      Append(layer, kReply, "U8", {static_cast<int64_t>(output.size())}, output);
    }
    GDN_ASSIGN_OR_RETURN(metadata_[StrCat(kLayerPrefix, layer.layer)], LayerText(entry));
    return absl::OkStatus();
  }

  Metadata& metadata() { return metadata_; }
  const std::vector<RawTensor>& tensors() const { return tensors_; }
  Checksums MakeChecksums(SharedThreadPool* pool) const {
    std::vector<std::string> made(tensors_.size());
    ForEachIndex(pool, static_cast<int64_t>(made.size()), [&](int64_t i) {
      made[static_cast<size_t>(i)] = HashBytes(tensors_[static_cast<size_t>(i)].data).ToHex();
    });
    Checksums checksums;
    for (size_t i = 0; i < made.size(); ++i) checksums[tensors_[i].name] = std::move(made[i]);
    return checksums;
  }
  std::vector<std::shared_ptr<const void>>& owned() { return owned_; }

 private:
  struct LayerView {
    SlotView view;
    std::shared_ptr<const std::vector<float>> scratch;
  };

  bool IsFolded(const LayerImage& layer) const {
    return options_.include_recurrent_state && layer.extent.log_length > 0;
  }
  bool HasBase(const LayerImage& layer) const {
    return layer.has_base && (options_.base_snapshot_id.empty() || !IsKnownBase(layer, options_.known_bases));
  }

  void Append(const LayerImage& layer, std::string_view part, std::string_view dtype, std::vector<int64_t> shape,
              std::string_view data) {
    tensors_.push_back({TensorName(layer.layer, part), std::string(dtype), std::move(shape), data});
  }
  void AddFloats(const LayerImage& layer, std::string_view part, absl::Span<const float> values) {
    Append(layer, part, "F32", PartShape(part, image_.layout.dims(), layer.extent), Bytes(values));
  }
  void AddBase(const LayerImage& layer, std::string_view part, const SlotView& view) {
    if (view.base_bf16.empty()) return AddFloats(layer, part, view.base);
    Append(layer, part, DTypeName(DType::kBF16), PartShape(part, image_.layout.dims(), layer.extent),
           {reinterpret_cast<const char*>(view.base_bf16.data()), view.base_bf16.size() * sizeof(uint16_t)});
  }
  void AddConverted(const LayerImage& layer, std::shared_ptr<std::vector<float>> state) {
    const DType dtype = options_.recurrent_state_dtype;
    if (dtype == DType::kF32) {
      AddFloats(layer, kRecurrentState, *state);
      owned_.push_back(std::move(state));
      return;
    }
    auto narrow = std::make_shared<std::string>(state->size() * DTypeSize(dtype), '\0');
    ConvertFromFloat(state->data(), state->size(), dtype, narrow->data());
    Append(layer, kRecurrentState, DTypeName(dtype), PartShape(kRecurrentState, image_.layout.dims(), layer.extent),
           *narrow);
    owned_.push_back(std::move(narrow));
  }

  const SessionImage& image_;
  const StateFileOptions& options_;
  Metadata metadata_;
  std::vector<LayerView> views_;
  std::vector<RawTensor> tensors_;
  std::vector<std::shared_ptr<const void>> owned_;
};

absl::Status AddHeader(const SessionImage& image, const StateFileOptions& options, Metadata& metadata) {
  const SessionHeader& header = image.header;
  const int32_t last = std::max(header.layers.empty() ? -1 : header.layers.back(),
                                image.layers.empty() ? -1 : image.layers.back().layer);
  if (last < 0 || last >= kMaxLayerCount) {
    return absl::InvalidArgumentError(
        StrCat("the session's last layer is ", last, "; expected 0 to ", kMaxLayerCount - 1));
  }
  metadata["dims"] = DimsText(header.dims);
  metadata["layer_count"] = StrCat(last + 1);
  for (const auto& [key, member] : kModelEntries) metadata[key] = header.*member;
  if (!header.slice.heads.is_whole()) metadata["heads"] = HeadsText(header.slice);
  metadata["numerics_id"] = image.numerics_id;
  if (image.layout.base_dtype() != DType::kF32) metadata["base_dtype"] = DTypeName(image.layout.base_dtype());
  metadata["log_capacity"] = StrCat(kLogCapacity);
  metadata["epoch"] = StrCat(header.epoch);
  metadata["created"] = absl::FormatTime(absl::RFC3339_full, absl::Now(), absl::UTCTimeZone());
  if (!options.base_snapshot_id.empty()) metadata["base_snapshot_id"] = options.base_snapshot_id;
  if (!header.accept_request_id.empty()) {
    GDN_ASSIGN_OR_RETURN(metadata["accept"], AcceptText(header));
  }
  if (options.list_layers && !header.model.empty()) metadata["layers"] = LayersText(header);
  if (options.include_owner) {
    GDN_ASSIGN_OR_RETURN(metadata["owner"], OwnerText(header));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<std::vector<float>>> FoldedBase(const StateLayout& of, const SlotExtent& extent,
                                                               const SlotView& view) {
  GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(of.dims(), of.max_draft()));
  auto slot = std::make_shared<std::vector<float>>(layout.slot_floats());
  FillSlot(layout, /*transposed_base=*/false, extent, view, slot->data());
  const int32_t index = 0;
  MaterializeStateReference({.pool = {.layout = layout, .data = slot->data(), .slot_count = 1},
                             .count = 1,
                             .src = &index,
                             .dst = &index,
                             .log_lengths = &extent.log_length});
  slot->resize(layout.dims().state_elements());
  return slot;
}

absl::StatusOr<EncodedStateFile> EncodeStateFile(SessionImagePtr image, const StateFileOptions& options,
                                                 SharedThreadPool* pool) {
  GDN_RETURN_IF_ERROR(ValidateLayerDims(image->header.dims));
  if (image->header.dims != image->layout.dims()) {
    return absl::InvalidArgumentError(StrCat("the session's dimensions are ", LayerDimsToString(image->header.dims),
                                             ", and its slots' ", LayerDimsToString(image->layout.dims())));
  }
  if (options.recurrent_state_dtype != DType::kF32 && options.recurrent_state_dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        StrCat("recurrent_state_dtype is ", DTypeName(options.recurrent_state_dtype), "; expected F32 or BF16"));
  }
  FileParts parts(*image, options);
  GDN_RETURN_IF_ERROR(AddHeader(*image, options, parts.metadata()));
  int32_t previous = -1;
  for (const LayerImage& layer : image->layers) {
    GDN_RETURN_IF_ERROR(ValidateLayer(*image, layer, previous));
    previous = layer.layer;
  }
  parts.View(pool);
  for (size_t i = 0; i < image->layers.size(); ++i) GDN_RETURN_IF_ERROR(parts.Add(i));
  EncodedStateFile file;
  file.snapshot_id_ = RandomId();
  parts.metadata()["snapshot_id"] = file.snapshot_id_;
  GDN_ASSIGN_OR_RETURN(std::string header, SealedHeader(parts.tensors(), parts.metadata(), parts.MakeChecksums(pool)));
  const auto text = std::make_shared<const std::string>(std::move(header));
  file.pieces_.push_back(*text);
  for (const RawTensor& tensor : parts.tensors()) {
    if (!tensor.data.empty()) file.pieces_.push_back(tensor.data);
  }
  for (const std::string_view piece : file.pieces_) file.bytes_ += static_cast<int64_t>(piece.size());
  file.owned_ = std::move(parts.owned());
  file.owned_.push_back(text);
  file.image_ = std::move(image);
  return file;
}

}  // namespace gdn
