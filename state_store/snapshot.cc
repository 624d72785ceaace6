#include "state_store/snapshot.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/safetensors.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "gdn.state";
constexpr std::string_view kFormatVersion = "1";
constexpr std::string_view kLayerPrefix = "layer.";
constexpr int32_t kMaxLayerCount = 4096;
// Rows a log can hold under any max_draft that StateLayout accepts.
constexpr int32_t kMaxLogLength = kLogCapacity + 64;

constexpr std::pair<const char*, int32_t LayerDims::*> kDimFields[] = {
    {"key_heads", &LayerDims::key_heads},   {"value_heads", &LayerDims::value_heads},
    {"key_dim", &LayerDims::key_dim},       {"value_dim", &LayerDims::value_dim},
    {"conv_width", &LayerDims::conv_width}, {"hidden_size", &LayerDims::hidden_size},
};

constexpr std::string_view kConvState = "conv_state";
constexpr std::string_view kRecurrentState = "recurrent_state";
constexpr std::string_view kBaseState = "base_state";
constexpr std::string_view kLogK = "log_k";
constexpr std::string_view kLogU = "log_u";
constexpr std::string_view kLogG = "log_g";
constexpr std::array<std::string_view, 6> kTensors = {kConvState, kRecurrentState, kBaseState, kLogK, kLogU, kLogG};

absl::Status Damaged(std::string_view message) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile, StrCat("not a valid state file: ", message));
}

// The shapes of a layer's tensors.
struct Shapes {
  Shapes(const LayerDims& d, int64_t log_length)
      : conv{d.conv_channels(), d.conv_width > 0 ? d.conv_width - 1 : 0},
        state{d.value_heads, d.key_dim, d.value_dim},
        log_k{log_length, d.key_heads, d.key_dim},
        log_u{log_length, d.value_heads, d.value_dim},
        log_g{log_length, d.value_heads} {}

  std::vector<int64_t> conv;
  std::vector<int64_t> state;
  std::vector<int64_t> log_k;
  std::vector<int64_t> log_u;
  std::vector<int64_t> log_g;
};

// Collects views of a snapshot's vectors under their names in the file.
class TensorList {
 public:
  absl::Status Add(int32_t layer, std::string_view what, const std::vector<int64_t>& shape,
                   const std::vector<float>& values) {
    const std::string name = StrCat(kLayerPrefix, layer, ".", what);
    TensorView view{.dtype = DType::kF32,
                    .shape = shape,
                    .data = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}};
    if (static_cast<int64_t>(values.size()) != view.ElementCount()) {
      return absl::InvalidArgumentError(
          StrCat(name, " has ", values.size(), " values; expected shape ", ShapeToString(shape)));
    }
    tensors_.push_back({.name = name, .view = std::move(view)});
    return absl::OkStatus();
  }

  const std::vector<NamedTensor>& tensors() const { return tensors_; }

 private:
  std::vector<NamedTensor> tensors_;
};

absl::Status AddLayer(const LayerDims& dims, const LayerSnapshot& layer, TensorList& list) {
  if (layer.token_count < layer.log_length || layer.log_length < 0 || layer.log_length > kMaxLogLength) {
    return absl::InvalidArgumentError(StrCat("layer ", layer.layer, " has ", layer.log_length, " logged of ",
                                             layer.token_count, " tokens; expected at most ", kMaxLogLength));
  }
  const Shapes shapes(dims, layer.log_length);
  if (dims.conv_width > 0) GDN_RETURN_IF_ERROR(list.Add(layer.layer, kConvState, shapes.conv, layer.image.conv));
  if (layer.log_length == 0) return list.Add(layer.layer, kRecurrentState, shapes.state, layer.image.base);
  GDN_RETURN_IF_ERROR(list.Add(layer.layer, kBaseState, shapes.state, layer.image.base));
  GDN_RETURN_IF_ERROR(list.Add(layer.layer, kLogK, shapes.log_k, layer.image.log_k));
  GDN_RETURN_IF_ERROR(list.Add(layer.layer, kLogU, shapes.log_u, layer.image.log_u));
  GDN_RETURN_IF_ERROR(list.Add(layer.layer, kLogG, shapes.log_g, layer.image.log_g));
  if (layer.recurrent_state.empty()) return absl::OkStatus();
  return list.Add(layer.layer, kRecurrentState, shapes.state, layer.recurrent_state);
}

std::string DimsJson(const LayerDims& dims) {
  Json json = Json::object();
  for (const auto& [field, member] : kDimFields) json[field] = dims.*member;
  return json.dump();
}

// {token_count, log_length, input_kind} has only ASCII text and integers, so dump() cannot throw.
std::string LayerJson(const LayerSnapshot& layer) {
  return Json{{"token_count", layer.token_count},
              {"log_length", layer.log_length},
              {"input_kind", std::string(InputKindName(layer.input_kind))}}
      .dump();
}

using Metadata = std::map<std::string, std::string>;

absl::StatusOr<std::string> RequiredText(const Metadata& metadata, const std::string& key) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) {
    return Damaged(StrCat("its __metadata__ has no '", key, "'; expected the metadata that ExportState writes"));
  }
  return it->second;
}

std::string OptionalText(const Metadata& metadata, const std::string& key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? std::string() : it->second;
}

absl::Status InvalidEntry(std::string_view key, std::string_view value, std::string_view expected) {
  return Damaged(StrCat("its __metadata__ entry '", key, "' is '", value, "'; expected ", expected));
}

// A decimal number in its only spelling: no sign, no space, no leading zero.
std::optional<int32_t> ParseIndex(std::string_view text) {
  int32_t value = 0;
  if (!absl::SimpleAtoi(AbslView(text), &value) || value < 0 || StrCat(value) != text) return std::nullopt;
  return value;
}

std::optional<int64_t> IntField(const Json& json, const char* field) {
  const auto it = json.find(field);
  if (it == json.end() || !it->is_number_unsigned()) return std::nullopt;
  const uint64_t value = it->get<uint64_t>();
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(value);
}

absl::StatusOr<LayerDims> ParseDims(const std::string& text) {
  const Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  LayerDims dims;
  for (const auto& [field, member] : kDimFields) {
    const auto value = json.is_object() ? IntField(json, field) : std::nullopt;
    if (!value.has_value() || *value > std::numeric_limits<int32_t>::max()) {
      return InvalidEntry("dims", text, StrCat("a JSON object with the non-negative integer '", field, "'"));
    }
    dims.*member = static_cast<int32_t>(*value);
  }
  if (const absl::Status status = ValidateLayerDims(dims); !status.ok()) {
    return InvalidEntry("dims", text, StrCat("valid dimensions: ", absl::string_view(status.message())));
  }
  return dims;
}

absl::Status ParseLayerEntry(const std::string& key, const std::string& text, LayerSnapshot& layer) {
  const Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  const auto token_count = json.is_object() ? IntField(json, "token_count") : std::nullopt;
  if (!token_count.has_value()) {
    return InvalidEntry(key, text, "a JSON object with the non-negative integer 'token_count'");
  }
  layer.token_count = *token_count;
  if (json.contains("log_length")) {
    const auto log_length = IntField(json, "log_length");
    if (!log_length.has_value() || *log_length > kMaxLogLength || *log_length > *token_count) {
      return InvalidEntry(key, text, StrCat("a log_length of at most token_count and ", kMaxLogLength));
    }
    layer.log_length = static_cast<int32_t>(*log_length);
  }
  if (const auto kind = json.find("input_kind"); kind != json.end()) {
    for (const InputKind known :
         {InputKind::kNone, InputKind::kHiddenStates, InputKind::kProjected, InputKind::kDeltaRule}) {
      if (!kind->is_string() || kind->get_ref<const std::string&>() != InputKindName(known)) continue;
      layer.input_kind = known;
      return absl::OkStatus();
    }
    return InvalidEntry(key, text, "input_kind to be none, hidden_states, projected or delta_rule");
  }
  return absl::OkStatus();
}

// The layers by the metadata, ascending, and each tensor accounted for by one of them.
absl::StatusOr<std::map<int32_t, LayerSnapshot>> ParseLayers(const SafetensorsFile& file, int32_t layer_count) {
  std::map<int32_t, LayerSnapshot> layers;
  for (const auto& [key, text] : file.metadata()) {
    if (!std::string_view(key).starts_with(kLayerPrefix)) continue;
    const auto index = ParseIndex(std::string_view(key).substr(kLayerPrefix.size()));
    if (!index.has_value() || *index >= layer_count) {
      return Damaged(
          StrCat("its __metadata__ entry '", key, "' does not name one of the session's ", layer_count, " layers"));
    }
    LayerSnapshot& layer = layers[*index];
    layer.layer = *index;
    GDN_RETURN_IF_ERROR(ParseLayerEntry(key, text, layer));
  }
  for (const auto& [name, entry] : file.entries()) {
    const std::string_view view = name;
    const size_t dot = view.find('.', kLayerPrefix.size());
    const bool known = view.starts_with(kLayerPrefix) && dot != std::string_view::npos &&
                       std::find(kTensors.begin(), kTensors.end(), view.substr(dot + 1)) != kTensors.end();
    const auto index = known ? ParseIndex(view.substr(kLayerPrefix.size(), dot - kLayerPrefix.size())) : std::nullopt;
    if (!index.has_value()) return Damaged(StrCat("tensor '", name, "' is not part of a state"));
    if (layers.count(*index) == 0) {
      return Damaged(StrCat("tensor '", name, "' has no __metadata__ entry '", kLayerPrefix, *index,
                            "', which gives its token count"));
    }
  }
  return layers;
}

// Reads one layer's tensors. Every tensor that is there has its shape checked, read or not.
class LayerReader {
 public:
  LayerReader(const SafetensorsFile& file, const LayerDims& dims, int64_t log_capacity)
      : file_(file), dims_(dims), log_capacity_(log_capacity) {}

  absl::Status Read(LayerSnapshot& layer) const {
    const Shapes shapes(dims_, layer.log_length);
    if (dims_.conv_width > 0) {
      GDN_ASSIGN_OR_RETURN(layer.image.conv, Floats(layer.layer, kConvState, shapes.conv));
    } else if (Has(layer.layer, kConvState)) {
      return Damaged(StrCat("tensor '", Name(layer.layer, kConvState), "' is there, but dims has no convolution"));
    }
    const bool has_log = Has(layer.layer, kBaseState);
    for (const std::string_view what : {kLogK, kLogU, kLogG}) {
      if (Has(layer.layer, what) != has_log) {
        return Damaged(StrCat("layer ", layer.layer, " has only some of ", kBaseState, ", ", kLogK, ", ", kLogU,
                              " and ", kLogG, "; expected all of them or none"));
      }
    }
    if (has_log != (layer.log_length > 0)) {
      return Damaged(StrCat("layer ", layer.layer, " has a log_length of ", layer.log_length,
                            has_log ? " and log tensors" : " but no log tensors"));
    }
    std::vector<float> recurrent_state;
    if (!has_log || Has(layer.layer, kRecurrentState)) {
      GDN_ASSIGN_OR_RETURN(recurrent_state, Floats(layer.layer, kRecurrentState, shapes.state));
    }
    if (!has_log) {
      layer.image.base = std::move(recurrent_state);
      return absl::OkStatus();
    }
    GDN_ASSIGN_OR_RETURN(layer.image.base, Floats(layer.layer, kBaseState, shapes.state));
    GDN_ASSIGN_OR_RETURN(layer.image.log_k, Floats(layer.layer, kLogK, shapes.log_k));
    GDN_ASSIGN_OR_RETURN(layer.image.log_u, Floats(layer.layer, kLogU, shapes.log_u));
    GDN_ASSIGN_OR_RETURN(layer.image.log_g, Floats(layer.layer, kLogG, shapes.log_g));
    return log_capacity_ == kLogCapacity ? absl::OkStatus() : DropLog(layer, std::move(recurrent_state));
  }

 private:
  static std::string Name(int32_t layer, std::string_view what) { return StrCat(kLayerPrefix, layer, ".", what); }
  bool Has(int32_t layer, std::string_view what) const { return file_.Contains(Name(layer, what)); }

  absl::StatusOr<std::vector<float>> Floats(int32_t layer, std::string_view what,
                                            const std::vector<int64_t>& shape) const {
    auto values = file_.Floats(Name(layer, what), shape);
    if (!values.ok()) return WithMetadata(Damaged(std::string(values.status().message())), "tensor", Name(layer, what));
    return values;
  }

  // Another log_capacity folds at other tokens: its log cannot go on here, though the state it stands for can.
  absl::Status DropLog(LayerSnapshot& layer, std::vector<float> recurrent_state) const {
    if (recurrent_state.empty()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                       StrCat("the state file's log_capacity is ", log_capacity_, " and this server's is ",
                              kLogCapacity, "; export it with the materialised recurrent_state"));
    }
    std::vector<float> conv = std::move(layer.image.conv);
    layer.image = SlotImage{};
    layer.image.base = std::move(recurrent_state);
    layer.image.conv = std::move(conv);
    layer.log_length = 0;
    return absl::OkStatus();
  }

  const SafetensorsFile& file_;
  const LayerDims& dims_;
  const int64_t log_capacity_;
};

}  // namespace

absl::StatusOr<std::string> EncodeSnapshot(const Snapshot& snapshot) {
  GDN_RETURN_IF_ERROR(ValidateLayerDims(snapshot.dims));
  if (snapshot.layer_count < 1 || snapshot.layer_count > kMaxLayerCount) {
    return absl::InvalidArgumentError(
        StrCat("layer_count is ", snapshot.layer_count, "; expected a value in [1, ", kMaxLayerCount, "]"));
  }
  Metadata metadata = {{"format", std::string(kFormat)},
                       {"format_version", std::string(kFormatVersion)},
                       {"model_fingerprint", snapshot.model_fingerprint},
                       {"dims", DimsJson(snapshot.dims)},
                       {"numerics_id", snapshot.numerics_id},
                       {"log_capacity", StrCat(kLogCapacity)},
                       {"layer_count", StrCat(snapshot.layer_count)}};
  TensorList list;
  int32_t previous = -1;
  for (const LayerSnapshot& layer : snapshot.layers) {
    if (layer.layer <= previous || layer.layer >= snapshot.layer_count) {
      return absl::InvalidArgumentError(StrCat("layer ", layer.layer, " follows layer ", previous,
                                               "; expected ascending layers below ", snapshot.layer_count));
    }
    previous = layer.layer;
    GDN_RETURN_IF_ERROR(AddLayer(snapshot.dims, layer, list));
    metadata.emplace(StrCat(kLayerPrefix, layer.layer), LayerJson(layer));
  }
  return SerializeSafetensors(list.tensors(), metadata);
}

absl::StatusOr<Snapshot> DecodeSnapshot(std::string_view bytes) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Parse(bytes));
  const Metadata& metadata = file.metadata();
  GDN_ASSIGN_OR_RETURN(const std::string format, RequiredText(metadata, "format"));
  if (format != kFormat) return InvalidEntry("format", format, kFormat);
  GDN_ASSIGN_OR_RETURN(const std::string version, RequiredText(metadata, "format_version"));
  if (version != kFormatVersion) return InvalidEntry("format_version", version, kFormatVersion);

  Snapshot snapshot;
  GDN_ASSIGN_OR_RETURN(const std::string dims, RequiredText(metadata, "dims"));
  GDN_ASSIGN_OR_RETURN(snapshot.dims, ParseDims(dims));
  GDN_ASSIGN_OR_RETURN(const std::string layer_count, RequiredText(metadata, "layer_count"));
  snapshot.layer_count = ParseIndex(layer_count).value_or(0);
  if (snapshot.layer_count < 1 || snapshot.layer_count > kMaxLayerCount) {
    return InvalidEntry("layer_count", layer_count, StrCat("an integer in [1, ", kMaxLayerCount, "]"));
  }
  snapshot.model_fingerprint = OptionalText(metadata, "model_fingerprint");
  snapshot.numerics_id = OptionalText(metadata, "numerics_id");

  GDN_ASSIGN_OR_RETURN(auto layers, ParseLayers(file, snapshot.layer_count));
  const std::string log_capacity = OptionalText(metadata, "log_capacity");
  const int32_t capacity = ParseIndex(log_capacity).value_or(0);
  const LayerReader reader(file, snapshot.dims, capacity);
  for (auto& [index, layer] : layers) {
    if (layer.log_length > 0 && capacity == 0) {
      return InvalidEntry("log_capacity", log_capacity,
                          StrCat("a positive integer, since layer ", index, " has a log"));
    }
    GDN_RETURN_IF_ERROR(reader.Read(layer));
    snapshot.layers.push_back(std::move(layer));
  }
  return snapshot;
}

}  // namespace gdn
