#include "server/checkpoint/quantization_config.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kCompressedTensors = "compressed-tensors";
constexpr std::string_view kModelOpt = "modelopt";

std::string TextOf(const Json* value) {
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

std::optional<int64_t> IntOf(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number_integer()) return std::nullopt;
  return it->get<int64_t>();
}

WeightScheme ParseScheme(const Json& weights) {
  WeightScheme scheme{.bits = IntOf(weights, "num_bits")};
  if (const auto type = weights.find("type"); type != weights.end() && type->is_string()) {
    scheme.is_float = *type == "float";
  }
  if (const auto symmetric = weights.find("symmetric"); symmetric != weights.end() && symmetric->is_boolean()) {
    scheme.symmetric = symmetric->get<bool>();
  }
  // -1 means one group for a whole row.
  if (const auto group = IntOf(weights, "group_size"); group.has_value() && *group > 0) scheme.group = group;
  return scheme;
}

void ParseGroups(const Json* groups, QuantizationConfig& config) {
  if (groups == nullptr || !groups->is_object()) return;
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) continue;
    const auto weights = group.find("weights");
    if (weights != group.end() && weights->is_object()) config.weights.push_back(ParseScheme(*weights));
  }
}

absl::Status CheckFp8(const ConfigFields& quantization) {
  if (const Json* format = quantization.Find("fmt"); format != nullptr && *format != "e4m3") {
    return quantization.Invalid("fmt", "\"e4m3\"");
  }
  const Json* block = quantization.Find("weight_block_size");
  if (block == nullptr || *block == Json{kFp8Block, kFp8Block}) return absl::OkStatus();
  return quantization.Invalid("weight_block_size", StrCat("[", kFp8Block, ", ", kFp8Block, "]"));
}

// Returns the names by which a config may call the format of a tensor that is packed as `format`.
std::vector<std::string_view> FormatsOf(std::string_view method, PackedFormat format) {
  if (method == kModelOpt) {
    if (format == PackedFormat::kFp8) return {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION"};
    if (format == PackedFormat::kNvfp4) return {"NVFP4", "MIXED_PRECISION"};
    return {};
  }
  if (format == PackedFormat::kFp8) return {"float-quantized", "naive-quantized", "mixed-precision"};
  if (format == PackedFormat::kInt8) return {"int-quantized", "naive-quantized", "mixed-precision"};
  return {format == PackedFormat::kInt4 ? "pack-quantized" : "nvfp4-pack-quantized", "mixed-precision"};
}

template <typename T>
bool Agrees(const std::optional<T>& said, const std::optional<T>& found) {
  return !said.has_value() || !found.has_value() || *said == *found;
}

bool Agrees(const WeightScheme& said, const WeightScheme& found) {
  return Agrees(said.bits, found.bits) && Agrees(said.is_float, found.is_float) &&
         Agrees(said.symmetric, found.symmetric) && Agrees(said.group, found.group);
}

// Returns a text such as "4 bits, int, symmetric, groups of 32".
std::string SchemeText(const WeightScheme& scheme) {
  std::string text;
  const auto add = [&text](std::string_view part) { StrAppend(&text, text.empty() ? "" : ", ", part); };
  if (scheme.bits) add(StrCat(*scheme.bits, " bits"));
  if (scheme.is_float) add(*scheme.is_float ? "float" : "int");
  if (scheme.symmetric) add(*scheme.symmetric ? "symmetric" : "asymmetric");
  if (scheme.group) add(StrCat("groups of ", *scheme.group));
  return text;
}

}  // namespace

absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(const ConfigFields& fields) {
  QuantizationConfig parsed;
  const Json* config = fields.Find("quantization_config");
  if (config == nullptr) return parsed;
  if (!config->is_object()) return fields.Invalid("quantization_config", "an object");
  const ConfigFields quantization("quantization_config", *config);
  // Rotated weights look like any others, but are right only for rotated activations.
  const Json* transforms = quantization.Find("transform_config");
  if (transforms != nullptr && !transforms->empty()) {
    return quantization.Invalid("transform_config",
                                "none: layers are served without transforms of their weights and activations");
  }
  parsed.method = TextOf(quantization.Find("quant_method"));
  if (parsed.method == "fp8") GDN_RETURN_IF_ERROR(CheckFp8(quantization));
  parsed.format = TextOf(quantization.Find(parsed.method == kModelOpt ? "quant_algo" : "format"));
  if (parsed.method == kCompressedTensors) ParseGroups(quantization.Find("config_groups"), parsed);
  for (const char* field : {"ignore", "exclude_modules", "modules_to_not_convert"}) {
    const Json* names = quantization.Find(field);
    if (names == nullptr || !names->is_array()) continue;
    for (const Json& name : *names) {
      if (name.is_string()) parsed.unquantized.push_back(name.get<std::string>());
    }
  }
  return parsed;
}

absl::Status CheckScheme(const QuantizationConfig& config, const std::string& tensor, PackedFormat format,
                         const WeightScheme& found) {
  const auto refuse = [&](std::string_view message) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("tensor '", tensor, "' is ", PackedFormatName(format), " (", SchemeText(found), "), and ",
                            message, "; expected the config and the weights to agree: fetch both anew"),
                     {{"tensor", tensor}});
  };
  const std::string module = tensor.substr(0, tensor.rfind('.'));
  const auto& unquantized = config.unquantized;
  if (std::find(unquantized.begin(), unquantized.end(), module) != unquantized.end()) {
    return refuse("quantization_config says that its module is not quantised");
  }
  if (config.method != kCompressedTensors && config.method != kModelOpt) return absl::OkStatus();
  const std::vector<std::string_view> formats = FormatsOf(config.method, format);
  if (!config.format.empty() && std::find(formats.begin(), formats.end(), config.format) == formats.end()) {
    return refuse(StrCat("quantization_config says '", config.format, "' of the format"));
  }
  if (config.weights.empty()) return absl::OkStatus();
  std::string said;
  for (const WeightScheme& scheme : config.weights) {
    if (Agrees(scheme, found)) return absl::OkStatus();
    StrAppend(&said, said.empty() ? "" : "; ", SchemeText(scheme));
  }
  return refuse(StrCat("quantization_config.config_groups says: ", said));
}

}  // namespace gdn
