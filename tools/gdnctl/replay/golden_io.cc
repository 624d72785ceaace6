#include "tools/gdnctl/replay/golden_io.h"

#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/files/safetensors.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status Unfit(const std::string& tensor, std::string_view what) {
  return absl::InvalidArgumentError(StrCat("tensor '", tensor, "' ", what));
}

// `shape`: -1 matches any dimension.
absl::StatusOr<GoldenTensor> Read(const SafetensorsFile& file, const std::string& name,
                                  const std::vector<int64_t>& shape) {
  const auto entry = file.entries().find(name);
  if (entry == file.entries().end()) return Unfit(name, "is missing");
  GoldenTensor tensor{.shape = entry->second.shape, .values = {}};
  bool fits = tensor.shape.size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] == -1 || shape[i] == tensor.shape[i];
  if (!fits) {
    return Unfit(name,
                 StrCat("has shape ", ShapeToString(tensor.shape), ", expected ", ShapeToString(shape), " (-1: any)"));
  }
  GDN_ASSIGN_OR_RETURN(tensor.values, file.Floats(name));
  return tensor;
}

std::set<int32_t> LayersOf(const SafetensorsFile& file) {
  std::set<int32_t> layers;
  for (const auto& [name, entry] : file.entries()) {
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    int32_t layer = 0;
    if (parts.size() >= 3 && parts[0] == "layer" && absl::SimpleAtoi(parts[1], &layer)) layers.insert(layer);
  }
  return layers;
}

// A recording of a GGUF file has states in that file's order of heads and, under this name, in the order that servers
// keep.
std::string StateName(const SafetensorsFile& file, const std::string& name) {
  const std::string ordered = name + "_hf_order";
  return file.Contains(ordered) ? ordered : name;
}

absl::StatusOr<GoldenLayer> ReadLayer(const SafetensorsFile& file, int32_t layer, int64_t decode_steps) {
  const std::string prefix = StrCat("layer.", layer, ".");
  GoldenLayer golden;
  golden.layer = layer;
  GDN_ASSIGN_OR_RETURN(golden.prefill_in, Read(file, prefix + "prefill.in", {-1, -1, -1}));
  GDN_ASSIGN_OR_RETURN(golden.prefill_out, Read(file, prefix + "prefill.out", golden.prefill_in.shape));
  const int64_t batch = golden.prefill_in.shape[0];
  const int64_t hidden = golden.prefill_in.shape[2];
  for (int64_t step = 0; step < decode_steps; ++step) {
    const std::string name = StrCat(prefix, "decode.", step);
    GDN_ASSIGN_OR_RETURN(GoldenTensor in, Read(file, name + ".in", {batch, 1, hidden}));
    GDN_ASSIGN_OR_RETURN(GoldenTensor out, Read(file, name + ".out", {batch, 1, hidden}));
    golden.decode_in.push_back(std::move(in));
    golden.decode_out.push_back(std::move(out));
  }
  if (file.Contains(prefix + "whole.in") || file.Contains(prefix + "whole.out")) {
    GDN_ASSIGN_OR_RETURN(golden.whole_in, Read(file, prefix + "whole.in", {batch, -1, hidden}));
    GDN_ASSIGN_OR_RETURN(golden.whole_out, Read(file, prefix + "whole.out", golden.whole_in.shape));
  }
  GDN_ASSIGN_OR_RETURN(golden.conv_state, Read(file, StateName(file, prefix + "conv_state"), {batch, -1, -1}));
  GDN_ASSIGN_OR_RETURN(golden.recurrent_state,
                       Read(file, StateName(file, prefix + "recurrent_state"), {batch, -1, -1, -1}));
  return golden;
}

}  // namespace

absl::Span<const float> GoldenTensor::Sequence(int64_t sequence) const {
  const size_t size = values.size() / static_cast<size_t>(shape[0]);
  return absl::MakeConstSpan(values).subspan(static_cast<size_t>(sequence) * size, size);
}

absl::Span<const float> GoldenTensor::Tokens(int64_t sequence, int64_t first, int64_t count) const {
  return Sequence(sequence).subspan(static_cast<size_t>(first * shape[2]), static_cast<size_t>(count * shape[2]));
}

absl::StatusOr<GoldenIo> ReadGoldenIo(const std::string& path) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  const std::set<int32_t> layers = LayersOf(file);
  if (layers.empty()) {
    return absl::InvalidArgumentError(
        StrCat("'", path, "' has no tensor named layer.L.*; expected recorded layer inputs and outputs"));
  }
  GoldenIo io;
  while (file.Contains(StrCat("layer.", *layers.begin(), ".decode.", io.decode_steps, ".in"))) ++io.decode_steps;
  if (io.decode_steps == 0) return Unfit(StrCat("layer.", *layers.begin(), ".decode.0.in"), "is missing");

  for (const int32_t layer : layers) {
    GDN_ASSIGN_OR_RETURN(GoldenLayer golden, ReadLayer(file, layer, io.decode_steps));
    io.layers.push_back(std::move(golden));
  }
  const GoldenLayer& first = io.layers[0];
  io.batch = first.prefill_in.shape[0];
  io.prompt_tokens = first.prefill_in.shape[1];
  io.hidden_size = first.prefill_in.shape[2];
  if (io.batch < 1 || io.prompt_tokens < 1 || io.hidden_size < 1) {
    return absl::InvalidArgumentError(
        StrCat("'", path, "' records no tokens: prefill.in has shape ", ShapeToString(first.prefill_in.shape)));
  }
  for (const GoldenLayer& golden : io.layers) {
    const std::string prefix = StrCat("layer.", golden.layer, ".");
    if (golden.prefill_in.shape != first.prefill_in.shape) {
      return Unfit(prefix + "prefill.in", "has another shape than that of the first layer");
    }
    if (!golden.has_whole()) continue;
    if (golden.whole_in.shape[1] < 1) return Unfit(prefix + "whole.in", "records no tokens");
  }
  return io;
}

}  // namespace gdn
