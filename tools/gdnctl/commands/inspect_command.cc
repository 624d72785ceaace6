// gdnctl models inspect: what a checkpoint's layers are, read as the server reads them, before any server has it.
#include <deque>
#include <map>
#include <optional>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/lora_adapter.h"
#include "server/checkpoint/slice_layer.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/layer_text.h"
#include "tools/gdnctl/print.h"

ABSL_DECLARE_FLAG(std::string, heads);

ABSL_FLAG(std::string, adapter, "", "PATH: a folder with a LoRA adapter, as a server's --adapter.");

namespace gdn {
namespace {

// What is printed of a checkpoint, in this order.
using Lines = std::vector<std::pair<std::string, std::string>>;

// In the files, and where a backend takes every format and where it takes none that is quantised.
std::string WeightsText(const Checkpoint& checkpoint, const std::optional<LoraAdapter>& adapter) {
  std::map<std::string_view, int64_t> stored;  // bytes by encoding
  int64_t kept = 0;
  int64_t widened = 0;
  const auto is_merged = [&](int32_t layer, LayerTensor tensor) {
    if (!adapter.has_value()) return false;
    const auto pairs = adapter->layers.find(layer);
    return pairs != adapter->layers.end() && pairs->second.count(tensor) != 0;
  };
  for (const LayerTensors& layer : checkpoint.layers) {
    for (const auto& [tensor, of_layer] : layer.tensors) {
      const bool packed = of_layer.packed != nullptr && of_layer.data.empty();
      const auto bytes = packed ? FileBytes(of_layer) : static_cast<int64_t>(of_layer.data.size());
      const bool matrix = of_layer.shape.size() == 2;      // vectors are widened
      const bool merged = is_merged(layer.layer, tensor);  // in F32
      const DType dtype = matrix && !merged ? WidenedDType(of_layer.encoding) : DType::kF32;
      const int64_t wide = of_layer.ElementCount() * static_cast<int64_t>(DTypeSize(dtype));
      stored[packed ? PackedFormatName(of_layer.packed->format) : WeightFormatName(of_layer.encoding)] += bytes;
      const int64_t unpacked = packed ? of_layer.shape[0] * RowBytes(of_layer.encoding, of_layer.shape[1]) : bytes;
      kept += matrix && !merged ? unpacked : wide;
      widened += wide;
    }
  }
  std::string text;
  for (const auto& [name, bytes] : stored) StrAppend(&text, text.empty() ? "" : ", ", FormatBytes(bytes), " ", name);
  StrAppend(&text, "; ", FormatBytes(kept), " once loaded");
  return kept == widened ? text : StrCat(text, ", ", FormatBytes(widened), " where a backend widens what is quantised");
}

// How much of the layers an adapter changes.
std::string AdapterText(const LoraAdapter& adapter, const ModelConfig& config) {
  size_t projections = 0;
  for (const auto& [layer, pairs] : adapter.layers) projections += pairs.size();
  return StrCat("merged into ", projections, " projections of ", adapter.layers.size(), " of ",
                config.gdn_layers.size(), " GDN layers");
}

Lines Describe(const Checkpoint& checkpoint, const std::optional<LoraAdapter>& adapter) {
  const ModelConfig& config = checkpoint.config;
  const std::string_view verified = config.family->verified ? "" : "; not verified: needs --allow-unverified-family";
  Lines lines = {{"model type", StrCat(config.model_type, verified)},
                 {"GDN layers", absl::StrFormat("%d of %d: %s", config.gdn_layers.size(), config.num_layers,
                                                FormatRanges(config.gdn_layers))},
                 {"weights", WeightsText(checkpoint, adapter)}};
  if (adapter.has_value()) lines.emplace_back("adapter", AdapterText(*adapter, config));
  for (const LayerSpecLine& line : DescribeLayerSpec(config.spec)) {
    lines.emplace_back(std::string(line.part), line.text);
  }
  return lines;
}

// The checkpoint, or what a server of --heads would take of it.
struct OpenedSlice {
  Checkpoint checkpoint;
  std::deque<MadeLayer> layers;  // that its own point into
  std::optional<LoraAdapter> adapter = std::nullopt;
};
absl::StatusOr<OpenedSlice> OpenSlice(const std::string& path) {
  OpenedSlice opened;
  GDN_ASSIGN_OR_RETURN(opened.checkpoint, OpenCheckpoint(path));
  if (const std::string adapter = absl::GetFlag(FLAGS_adapter); !adapter.empty()) {
    GDN_ASSIGN_OR_RETURN(opened.adapter, OpenLoraAdapter(adapter, opened.checkpoint.config));
  }
  if (absl::GetFlag(FLAGS_heads).empty()) return opened;
  GDN_ASSIGN_OR_RETURN(const HeadSlice heads, ParseHeadSlice(absl::GetFlag(FLAGS_heads)));
  Checkpoint& checkpoint = opened.checkpoint;
  GDN_RETURN_IF_ERROR(CheckSlice(checkpoint.config, checkpoint.layers, heads));
  for (LayerTensors& layer : checkpoint.layers) {
    layer = opened.layers.emplace_back(SliceLayer(checkpoint.config.spec, layer, heads)).tensors;
  }
  checkpoint.config.spec = SliceSpec(checkpoint.config.spec, heads);
  return opened;
}

absl::StatusOr<int> RunInspect(const std::vector<std::string>& paths) {
  if (paths.empty()) return UsageError("a checkpoint is needed: gdnctl models inspect PATH");
  const bool as_json = absl::GetFlag(FLAGS_json);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const std::string& path : paths) {
    GDN_ASSIGN_OR_RETURN(const OpenedSlice opened, OpenSlice(path));
    nlohmann::ordered_json object = {{"path", path}};
    if (!as_json) absl::PrintF("%s\n", path);
    for (const auto& [name, text] : Describe(opened.checkpoint, opened.adapter)) {
      if (!as_json) absl::PrintF("  %-12s %s\n", name, text);
      object[name] = text;
    }
    json.push_back(std::move(object));
  }
  if (as_json) absl::PrintF("%s\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  return kExitOk;
}

}  // namespace

std::vector<Command> InspectCommands() {
  return {
      {.name = "models inspect",
       .arguments = "PATH [PATH ...]",
       .summary = "Read a model checkpoint as the server would: its family and what its layers compute",
       .details =
           "Needs no server. If a server would refuse the checkpoint, the --heads or the --adapter, the command fails\n"
           "with the same message.\n",
       .flags = {"adapter", "heads", "json"},
       .run = RunInspect}};
}

}  // namespace gdn
