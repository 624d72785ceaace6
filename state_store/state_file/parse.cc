#include "state_store/state_file/parse.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/count_limits.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/state_file/metadata.h"
#include "state_store/state_file/sealed_header.h"

namespace gdn {
namespace {

using namespace state_file;  // NOLINT: the other half of this file

// Opens the header. Before anything else in it is used, checks its checksum, then the format's own rules, then the
// version.
absl::StatusOr<SafetensorsFile> OpenHeader(std::string_view bytes, uint64_t file_bytes) {
  GDN_ASSIGN_OR_RETURN(const bool sealed, CheckHeaderChecksum(bytes));
  auto file = SafetensorsFile::ParseHeader(bytes, file_bytes);
  if (!file.ok()) {
    if (ErrorMetadata(file.status()).count("tensor") != 0) return file.status();
    return WithMetadata(file.status(), "tensor", kHeader);
  }
  const Metadata& metadata = file->metadata();
  GDN_ASSIGN_OR_RETURN(const std::string format, RequiredText(metadata, "format"));
  if (format != kFormat) return InvalidEntry("format", format, kFormat);
  GDN_ASSIGN_OR_RETURN(const std::string version, RequiredText(metadata, "format_version"));
  GDN_ASSIGN_OR_RETURN(const bool has_checksums, HasChecksums(version));
  if (!sealed && (has_checksums || metadata.count("header_checksum") != 0)) {
    return Damaged("it has no header_checksum of 32 hexadecimal digits, written without spaces");
  }
  if (has_checksums) GDN_RETURN_IF_ERROR(RequiredText(metadata, "checksums").status());
  return file;
}

// Reads the checksums, and checks that they and the tensors name each other.
absl::StatusOr<Checksums> ReadChecksums(const SafetensorsFile& file) {
  if (file.metadata().count("checksums") == 0) return Checksums();
  GDN_ASSIGN_OR_RETURN(Checksums checksums, ParseChecksums(file.metadata().at("checksums")));
  for (const auto& [name, checksum] : checksums) {
    if (!file.Contains(name))
      return Damaged(StrCat("it has a checksum of tensor '", name, "' but no such tensor"), name);
  }
  if (file.metadata().at("format_version") == kFormatVersionPlain) return checksums;
  for (const auto& [name, entry] : file.entries()) {
    if (checksums.count(name) == 0) return DamagedTensor(name, "has no checksum");
  }
  return checksums;
}

// Parses the layers in the metadata, and checks that each tensor belongs to one of them.
absl::StatusOr<std::map<int32_t, LayerEntry>> ParseLayers(const SafetensorsFile& file, int32_t layer_count) {
  std::map<int32_t, LayerEntry> layers;
  for (const auto& [key, text] : file.metadata()) {
    if (!std::string_view(key).starts_with(kLayerPrefix)) continue;
    const auto index = ParseIndex(std::string_view(key).substr(kLayerPrefix.size()));
    if (!index.has_value() || *index >= layer_count) {
      return Damaged(
          StrCat("its __metadata__ entry '", key, "' does not name one of the session's ", layer_count, " layers"));
    }
    GDN_ASSIGN_OR_RETURN(layers[*index], ParseLayer(key, text));
  }
  for (const auto& [name, entry] : file.entries()) {
    const std::string_view view = name;
    const size_t dot = view.find('.', kLayerPrefix.size());
    const bool known = view.starts_with(kLayerPrefix) && dot != std::string_view::npos &&
                       std::find(kParts.begin(), kParts.end(), view.substr(dot + 1)) != kParts.end();
    const auto index = known ? ParseIndex(view.substr(kLayerPrefix.size(), dot - kLayerPrefix.size())) : std::nullopt;
    if (!index.has_value()) return DamagedTensor(name, "is not part of a state");
    if (layers.count(*index) == 0) {
      return DamagedTensor(
          name, StrCat("has no __metadata__ entry '", kLayerPrefix, *index, "', which gives its token count"));
    }
  }
  return layers;
}

// ---- Checks that a layer's fields are ones that calls of the API could have made. Anybody may write a file with valid
// checksums. So the fields that are used later (a reply's bytes, a log's decays) must be within the API's own limits.

// Returns true if an output of `bytes` bytes can be one of at most `most` tokens of `features` elements, in some output
// dtype.
bool IsWholeTokens(int64_t bytes, int64_t features, int64_t most) {
  return std::ranges::any_of(std::initializer_list<DType>{DType::kF32, DType::kF16, DType::kBF16}, [&](DType dtype) {
    const int64_t token_bytes = features * static_cast<int64_t>(DTypeSize(dtype));
    return bytes % token_bytes == 0 && bytes / token_bytes <= most;
  });
}

// The kind of the last input must be one that layers of these dims take: a bare operator takes only delta_rule.
absl::Status CheckInputKind(const LayerDims& dims, const LayerEntry& entry, int32_t layer) {
  const bool takes_hidden = dims.has_layer();
  const bool takes_projected = dims.conv_width > 0;
  if (entry.kind == InputKind::kHiddenStates ? takes_hidden : entry.kind != InputKind::kProjected || takes_projected) {
    return absl::OkStatus();
  }
  return Damaged(StrCat("layer ", layer, " has the input_kind ", InputKindName(entry.kind), ", which layers of ",
                        LayerDimsToString(dims), " do not take; a bare operator's is delta_rule or none"));
}

// The tensor must be U8 of one dimension, and as long as the F32, F16 or BF16 output of a possible number of tokens.
absl::Status CheckReplyTensor(const LayerDims& dims, const LayerEntry& entry, const std::string& name,
                              const SafetensorsEntry& tensor) {
  if (tensor.dtype != "U8" || tensor.shape.size() != 1) {
    return DamagedTensor(
        name, StrCat("is ", tensor.dtype, " ", ShapeToString(tensor.shape), "; expected U8 of one dimension"));
  }
  // A draft's tokens are not in the count of its reply.
  const int64_t most = std::max<int64_t>(entry.reply->token_count, kMaxDraftLimit);
  const int64_t bytes = tensor.shape[0];
  const bool of_hidden = dims.has_layer() && (entry.kind == InputKind::kHiddenStates || entry.kind == InputKind::kNone);
  const bool of_values = entry.kind != InputKind::kHiddenStates;
  if (of_hidden && IsWholeTokens(bytes, dims.hidden_size, most)) return absl::OkStatus();
  if (of_values && IsWholeTokens(bytes, dims.value_features(), most)) return absl::OkStatus();
  return DamagedTensor(name,
                       StrCat("has ", bytes, " bytes; expected those of 0 to ", most, " tokens of ",
                              of_hidden ? dims.hidden_size : dims.value_features(), " elements in F32, F16 or BF16"));
}

// No log decay may be above 0. NaN is allowed, because a step with allow_non_finite may produce it.
absl::Status CheckLogDecays(const std::string& name, absl::Span<const float> log_g) {
  const auto* above = std::ranges::find_if(log_g, [](float g) { return g > 0.0f; });
  if (above == log_g.end()) return absl::OkStatus();
  return DamagedTensor(
      name, StrCat("has the log decay ", *above, " at element ", above - log_g.begin(), "; expected none above 0"));
}

// Reads one layer's tensors. Checks the shape of every tensor that is there, even of those that are not read.
class LayerReader {
 public:
  // `data`: false leaves the views empty.
  LayerReader(const SafetensorsFile& file, bool data, StateFile& result) : file_(file), data_(data), result_(result) {}

  absl::Status Read(const LayerEntry& entry, StateFileLayer& layer) {
    const SlotExtent& extent = entry.extent;
    const bool has_log = extent.log_length + extent.draft_length > 0;
    layer.extent = extent;
    layer.kind = entry.kind;
    layer.has_base = entry.has_base;
    GDN_RETURN_IF_ERROR(CheckInputKind(result_.header.dims, entry, layer.layer));
    GDN_RETURN_IF_ERROR(CheckParts(layer, has_log));
    if (result_.header.dims.conv_width > 0) {
      GDN_ASSIGN_OR_RETURN(layer.view.conv, Floats(layer, kConvState));
      if (extent.draft_length > 0) {
        GDN_ASSIGN_OR_RETURN(layer.view.draft_conv, Floats(layer, kDraftConvState));
      }
    }
    absl::Span<const float> recurrent_state;
    const bool has_recurrent_state = has_log && Has(layer.layer, kRecurrentState);
    if (has_recurrent_state) {
      GDN_ASSIGN_OR_RETURN(recurrent_state, Floats(layer, kRecurrentState));
    }
    if (entry.has_base) GDN_RETURN_IF_ERROR(ReadBase(layer, has_log ? kBaseState : kRecurrentState));
    if (has_log) {
      for (const auto& [part, values] : kLogParts) {
        GDN_ASSIGN_OR_RETURN(layer.view.*values, Floats(layer, part));
      }
      GDN_RETURN_IF_ERROR(CheckLogDecays(TensorName(layer.layer, kLogG), layer.view.log_g));
    }
    GDN_RETURN_IF_ERROR(ReadReply(entry, layer));
    if (extent.log_length == 0) return absl::OkStatus();
    return CheckLog(layer, has_recurrent_state, recurrent_state);
  }

 private:
  bool Has(int32_t layer, std::string_view part) const { return file_.Contains(TensorName(layer, part)); }

  // Checks that the parts which the counts imply are there, and no others.
  absl::Status CheckParts(const StateFileLayer& layer, bool has_log) const {
    const SlotExtent& extent = layer.extent;
    const auto unexpected = [&](std::string_view part, std::string_view why) {
      return DamagedTensor(TensorName(layer.layer, part), StrCat("is there, but ", why));
    };
    if (result_.header.dims.conv_width == 0 && Has(layer.layer, kConvState)) {
      return unexpected(kConvState, "dims has no convolution");
    }
    if (Has(layer.layer, kDraftConvState) && (extent.draft_length == 0 || result_.header.dims.conv_width == 0)) {
      return unexpected(kDraftConvState, "no draft is pending");
    }
    const bool logged = Has(layer.layer, kLogK);
    for (const std::string_view part : {kLogK, kLogU, kLogG, kBaseState}) {
      if (part == kBaseState && !layer.has_base) {
        if (Has(layer.layer, part)) return unexpected(part, "its layer says that its base is left out");
      } else if (Has(layer.layer, part) != logged) {
        return Damaged(StrCat("layer ", layer.layer, " has only some of ", kBaseState, ", ", kLogK, ", ", kLogU,
                              " and ", kLogG, "; expected all of them or none"));
      }
    }
    if (logged != has_log) {
      return Damaged(StrCat("layer ", layer.layer, " has a log_length of ", extent.log_length,
                            " and a draft_length of ", extent.draft_length,
                            logged ? ", and log tensors" : ", but no log tensors"));
    }
    if (layer.has_base) return absl::OkStatus();
    if (Has(layer.layer, kRecurrentState))
      return unexpected(kRecurrentState, "its layer says that its base is left out");
    if (result_.base_snapshot_id.empty()) {
      return Damaged(
          StrCat("layer ", layer.layer, " has no base, and there is no base_snapshot_id to say where it is"));
    }
    return absl::OkStatus();
  }

  struct FoundTensor {
    std::string name;
    DType dtype;
  };
  // Returns the tensor, or an error if it is missing or does not have the shape that follows from the layer's counts.
  absl::StatusOr<FoundTensor> Find(const StateFileLayer& layer, std::string_view part) const {
    const std::string name = TensorName(layer.layer, part);
    const std::vector<int64_t> shape = PartShape(part, result_.header.dims, layer.extent);
    const auto it = file_.entries().find(name);
    if (it == file_.entries().end()) return Damaged(StrCat("the file has no tensor '", name, "'"), name);
    if (it->second.shape != shape) {
      return DamagedTensor(name,
                           StrCat("has shape ", ShapeToString(it->second.shape), "; expected ", ShapeToString(shape)));
    }
    const auto dtype = ParseDType(it->second.dtype);
    if (!dtype.ok()) return Damaged(StrCat("tensor '", name, "': ", dtype.status().message()), name);
    return FoundTensor{name, *dtype};
  }

  // Reads a bfloat16 base as it is, and any other as float32.
  absl::Status ReadBase(StateFileLayer& layer, std::string_view part) {
    if (result_.base_dtype == DType::kF32) {
      GDN_ASSIGN_OR_RETURN(layer.view.base, Floats(layer, part));
      return absl::OkStatus();
    }
    GDN_ASSIGN_OR_RETURN(const FoundTensor tensor, Find(layer, part));
    if (tensor.dtype != result_.base_dtype) {
      return DamagedTensor(tensor.name,
                           StrCat("is ", DTypeName(tensor.dtype), "; base_dtype says ", DTypeName(result_.base_dtype)));
    }
    if (!data_) return absl::OkStatus();
    GDN_ASSIGN_OR_RETURN(const std::string_view bytes, file_.Bytes(tensor.name));
    const char* data = bytes.data();
    if (reinterpret_cast<uintptr_t>(data) % alignof(uint16_t) != 0) {
      auto aligned = std::make_shared<std::vector<float>>((bytes.size() + sizeof(float) - 1) / sizeof(float));
      std::memcpy(aligned->data(), data, bytes.size());
      data = reinterpret_cast<const char*>(aligned->data());
      result_.converted.push_back(std::move(aligned));
    }
    layer.view.base_bf16 = {reinterpret_cast<const uint16_t*>(data), bytes.size() / sizeof(uint16_t)};
    return absl::OkStatus();
  }

  absl::StatusOr<absl::Span<const float>> Floats(const StateFileLayer& layer, std::string_view part) {
    GDN_ASSIGN_OR_RETURN(const FoundTensor tensor, Find(layer, part));
    if (!data_) return absl::Span<const float>();
    GDN_ASSIGN_OR_RETURN(const std::string_view bytes, file_.Bytes(tensor.name));
    const size_t count = bytes.size() / DTypeSize(tensor.dtype);
    if (tensor.dtype == DType::kF32 && reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) == 0) {
      return absl::Span<const float>(reinterpret_cast<const float*>(bytes.data()), count);
    }
    auto values = std::make_shared<std::vector<float>>(count);
    ConvertToFloat(tensor.dtype, bytes.data(), count, values->data());
    result_.converted.push_back(values);
    return absl::Span<const float>(*values);
  }

  absl::Status ReadReply(const LayerEntry& entry, StateFileLayer& layer) const {
    const std::string name = TensorName(layer.layer, kReply);
    const bool has_output = entry.reply.has_value() && !entry.reply->output_dropped;
    if (file_.Contains(name) != has_output) {
      return Damaged(StrCat("layer ", layer.layer, " has only one of tensor '", name, "' and its reply's metadata"),
                     name);
    }
    if (entry.reply.has_value() && !has_output) layer.reply = std::make_shared<const StoredReply>(*entry.reply);
    if (!has_output) return absl::OkStatus();
    GDN_RETURN_IF_ERROR(CheckReplyTensor(result_.header.dims, entry, name, file_.entries().at(name)));
    if (!data_) return absl::OkStatus();
    StoredReply reply = *entry.reply;
    GDN_ASSIGN_OR_RETURN(const std::string_view bytes, file_.Bytes(name));
    reply.output = bytes;
    layer.reply = std::make_shared<const StoredReply>(std::move(reply));
    return absl::OkStatus();
  }

  // Checks the log's length. If the file has another log_capacity, which folds at other tokens, its log cannot continue
  // here. The recurrent_state then becomes the base, and a draft after it is kept.
  absl::Status CheckLog(StateFileLayer& layer, bool has_recurrent_state,
                        absl::Span<const float> recurrent_state) const {
    if (result_.log_capacity == kLogCapacity) {
      if (layer.extent.log_length < kLogCapacity) return absl::OkStatus();
      return Mismatch("log_length", StrCat("layer ", layer.layer, " has a log_length of ", layer.extent.log_length,
                                           "; expected less than ", kLogCapacity));
    }
    if (!has_recurrent_state) {
      return Mismatch("log_capacity",
                      StrCat("the state file's log_capacity is ", result_.log_capacity, " and this server's is ",
                             kLogCapacity, "; export it with the materialised recurrent_state"));
    }
    const int32_t entries = layer.extent.log_length + layer.extent.draft_length;
    for (const auto& [part, values] : kLogParts) {
      absl::Span<const float>& log = layer.view.*values;
      log.remove_prefix(log.size() / static_cast<size_t>(entries) * static_cast<size_t>(layer.extent.log_length));
    }
    layer.view.base = recurrent_state;
    layer.view.base_bf16 = {};
    layer.extent.log_length = 0;
    return absl::OkStatus();
  }

  const SafetensorsFile& file_;
  const bool data_;
  StateFile& result_;
};

absl::Status ReadSession(const Metadata& metadata, StateFile& result) {
  SessionHeader& header = result.header;
  GDN_ASSIGN_OR_RETURN(const std::string dims, RequiredText(metadata, "dims"));
  GDN_ASSIGN_OR_RETURN(header.dims, ParseDims(dims));
  GDN_ASSIGN_OR_RETURN(const std::string layer_count, RequiredText(metadata, "layer_count"));
  result.layer_count = ParseIndex(layer_count).value_or(0);
  if (result.layer_count < 1 || result.layer_count > kMaxLayerCount) {
    return InvalidEntry("layer_count", layer_count, StrCat("an integer in [1, ", kMaxLayerCount, "]"));
  }
  GDN_RETURN_IF_ERROR(CheckTextLengths(metadata));
  for (const auto& [key, member] : kModelEntries) header.*member = OptionalText(metadata, key);
  if (const std::string heads = OptionalText(metadata, "heads"); !heads.empty()) {
    GDN_RETURN_IF_ERROR(ParseHeads(heads, header));
  }
  result.numerics_id = OptionalText(metadata, "numerics_id");
  GDN_ASSIGN_OR_RETURN(result.snapshot_id, OptionalId(metadata, "snapshot_id"));
  GDN_ASSIGN_OR_RETURN(result.base_snapshot_id, OptionalId(metadata, "base_snapshot_id"));
  GDN_ASSIGN_OR_RETURN(result.base_dtype, BaseDTypeOf(metadata, header.dims));
  result.log_capacity = ParseIndex(OptionalText(metadata, "log_capacity")).value_or(0);
  if (const std::string epoch = OptionalText(metadata, "epoch"); !epoch.empty()) {
    const auto value = ParseInt(epoch);
    if (!value.has_value() || *value < 1 || *value > kMaxEpoch) {
      return InvalidEntry("epoch", epoch, StrCat("an integer in [1, ", kMaxEpoch, "]"));
    }
    header.epoch = *value;
  }
  if (const std::string created = OptionalText(metadata, "created"); !created.empty()) {
    const std::optional<absl::Time> time = ParseWallTime(created);
    if (!time.has_value()) return InvalidEntry("created", created, "a time as RFC 3339");
    result.created = *time;
  }
  if (const std::string accept = OptionalText(metadata, "accept"); !accept.empty()) {
    GDN_RETURN_IF_ERROR(ParseAccept(accept, header));
  }
  if (const std::string layers = OptionalText(metadata, "layers"); !layers.empty()) {
    GDN_RETURN_IF_ERROR(ParseLayerList(layers, result.layer_count, header));
  }
  if (const std::string owner = OptionalText(metadata, "owner"); !owner.empty()) {
    GDN_RETURN_IF_ERROR(ParseOwner(owner, result.layer_count, header));
    result.has_owner = true;
  }
  return absl::OkStatus();
}

// `data`: false reads the header alone.
absl::StatusOr<StateFile> ReadLayers(const SafetensorsFile& file, bool data) {
  StateFile result;
  GDN_RETURN_IF_ERROR(ReadSession(file.metadata(), result));
  GDN_ASSIGN_OR_RETURN(const auto layers, ParseLayers(file, result.layer_count));
  LayerReader reader(file, data, result);
  for (const auto& [index, entry] : layers) {
    if (entry.extent.log_length > 0 && result.log_capacity == 0) {
      return InvalidEntry("log_capacity", OptionalText(file.metadata(), "log_capacity"),
                          StrCat("a positive integer, since layer ", index, " has a log"));
    }
    StateFileLayer& layer = result.layers.emplace_back();
    layer.layer = index;
    GDN_RETURN_IF_ERROR(reader.Read(entry, layer));
    const std::vector<int32_t>& owned = result.header.layers;
    if (!owned.empty() && !std::binary_search(owned.begin(), owned.end(), index)) {
      return Damaged(
          StrCat("layer ", index, " is not one of the ", result.has_owner ? "owner" : "session", "'s layers"));
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<StateFile> ParseStateFileHeader(std::string_view bytes, int64_t file_bytes) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, OpenHeader(bytes, static_cast<uint64_t>(file_bytes)));
  GDN_RETURN_IF_ERROR(ReadChecksums(file).status());
  return ReadLayers(file, /*data=*/false);
}

absl::StatusOr<StateFile> ParseStateFile(std::string_view bytes, SharedThreadPool* pool) {
  GDN_ASSIGN_OR_RETURN(ArrivingStateFile file, ArrivingStateFile::Open(bytes, static_cast<int64_t>(bytes.size())));
  GDN_RETURN_IF_ERROR(file.Check(bytes, pool));
  return file.Finish(bytes);
}

absl::Status SealedTensor::Check(const Hash128& found) const {
  const std::string hex = found.ToHex();
  if (hex == checksum) return absl::OkStatus();
  return DamagedTensor(name, StrCat("is damaged: its checksum is ", hex, "; expected ", checksum));
}

absl::StatusOr<ArrivingStateFile> ArrivingStateFile::Open(std::string_view bytes, int64_t file_bytes) {
  GDN_ASSIGN_OR_RETURN(SafetensorsFile file, OpenHeader(bytes, static_cast<uint64_t>(file_bytes)));
  GDN_ASSIGN_OR_RETURN(Checksums checksums, ReadChecksums(file));
  ArrivingStateFile result(std::move(file));
  GDN_ASSIGN_OR_RETURN(result.header_, ReadLayers(result.file_, /*data=*/false));
  for (auto& [name, checksum] : checksums) {
    const auto& entry = result.file_.entries().at(name);
    const uint64_t data = result.file_.header_bytes();
    result.tensors_.push_back(
        {.name = name, .checksum = std::move(checksum), .begin = data + entry.begin, .end = data + entry.end});
  }
  std::sort(result.tensors_.begin(), result.tensors_.end(),
            [](const SealedTensor& a, const SealedTensor& b) { return a.end < b.end; });
  return result;
}

absl::Status ArrivingStateFile::Check(std::string_view bytes, SharedThreadPool* pool) {
  file_.Extend(bytes);
  const size_t first = checked_;
  while (checked_ < tensors_.size() && tensors_[checked_].end <= bytes.size()) ++checked_;
  std::vector<Hash128> found(checked_ - first);
  ForEachIndex(pool, static_cast<int64_t>(found.size()), [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    found[index] = HashBytes(*file_.Bytes(tensors_[first + index].name));
  });
  for (size_t i = 0; i < found.size(); ++i) {
    const absl::Status status = tensors_[first + i].Check(found[i]);
    if (status.ok()) continue;
    checked_ = first + i;
    return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<StateFile> ArrivingStateFile::Finish(std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) != file_bytes()) {
    return Damaged(StrCat("it has ", bytes.size(), " bytes; its header says ", file_bytes()));
  }
  GDN_RETURN_IF_ERROR(Check(bytes));
  return ReadLayers(file_, /*data=*/true);
}

}  // namespace gdn
