#include "server/model/model_digests.h"

#include <algorithm>
#include <bit>
#include <set>

#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/string_cat.h"
#include "base/threads/processors.h"
#include "base/threads/thread_pool.h"

namespace gdn {
namespace {

// Version of the fingerprint. It is raised when the meaning of the hashed fields changes, so that old state files are
// refused and not misread.
constexpr std::string_view kVersion = "gdn.model.1";

struct HashedLayer {
  Hash128 tensors;       // the layer's digest
  Hash128 with_adapter;  // the layer's part of the fingerprint; equal to `tensors` if no pair is for the layer
};

HashedLayer HashLayer(const ModelFamily& family, const LayerTensors& layer, const LoraAdapter* adapter) {
  Hasher hasher;
  hasher.UpdateInt(layer.layer);
  const auto update = [&hasher](std::string_view name, std::string_view type, const std::vector<int64_t>& shape,
                                std::string_view data) {
    hasher.UpdateField(name);
    hasher.UpdateField(type);
    hasher.UpdateInt(static_cast<int64_t>(shape.size()));
    for (const int64_t dim : shape) hasher.UpdateInt(dim);
    hasher.UpdateField(data);
  };
  for (const auto& [tensor, stored] : layer.tensors) {
    if (stored.packed != nullptr) {
      const PackedWeight& packed = *stored.packed;
      update(LayerTensorName(family, tensor), PackedFormatName(packed.format), stored.shape, packed.data);
      update("scales", WeightFormatName(packed.scale_format), {packed.scale_count(), packed.group}, packed.scales);
      update("zero points", "", {}, packed.zero_points);
      hasher.UpdateInt(std::bit_cast<int32_t>(packed.global_scale));
      hasher.UpdateInt(packed.global_divides ? 1 : 0);
      continue;
    }
    update(LayerTensorName(family, tensor), WeightFormatName(stored.encoding), stored.shape, stored.data);
    if (stored.encoding != WeightFormat::kF8E4M3) continue;
    update(kScaleSuffix, DTypeName(stored.scales.dtype), stored.scales.shape, stored.scales.data);
  }
  const Hash128 tensors = hasher.Finish();
  if (adapter == nullptr || adapter->layers.count(layer.layer) == 0) return {tensors, tensors};
  for (const auto& [projection, pair] : adapter->layers.at(layer.layer)) {
    hasher.UpdateField(StrCat("adapter of ", LayerTensorName(family, projection)));
    update("lora_A", DTypeName(pair.a.dtype), pair.a.shape, pair.a.data);
    update("lora_B", DTypeName(pair.b.dtype), pair.b.shape, pair.b.data);
    hasher.UpdateInt(std::bit_cast<int64_t>(pair.scale));
  }
  return {tensors, hasher.Finish()};
}

// Returns the formats of the layer's matrices, or of its other tensors.
std::string FormatsOf(const LayerTensors& layer, bool matrices, bool gguf) {
  std::set<std::string_view> formats;
  for (const auto& [tensor, stored] : layer.tensors) {
    // In GGUF, the convolution has two dimensions too.
    const bool matrix = stored.shape.size() == 2 && tensor != LayerTensor::kConv;
    if (matrix != matrices) continue;
    formats.insert(stored.packed != nullptr ? PackedFormatName(stored.packed->format)
                                            : WeightFormatName(stored.encoding));
  }
  return StrCat(gguf ? "GGUF " : "",
                absl::StrJoin(formats, "+", [](std::string* out, std::string_view format) { out->append(format); }));
}

// By ProjectionLayout.
constexpr std::string_view kProjectionsKeys[] = {"interleaved", "flat", "separate", "flat, b and a by key head"};

void HashSpec(const LayerSpec& spec, Hasher& hasher) {
  const LayerDims& dims = spec.dims;
  for (const int32_t dim :
       {dims.key_heads, dims.value_heads, dims.key_dim, dims.value_dim, dims.conv_width, dims.hidden_size}) {
    hasher.UpdateInt(dim);
  }
  hasher.UpdateField(kProjectionsKeys[static_cast<size_t>(spec.projections)]);
  hasher.UpdateInt(std::bit_cast<int32_t>(spec.norm_epsilon));
  // The first families have no other fields than these. Their fingerprints must not change.
  if (spec == LayerSpec{.dims = dims, .norm_epsilon = spec.norm_epsilon, .projections = spec.projections}) return;
  hasher.UpdateField("formula");
  hasher.UpdateInt(std::bit_cast<int32_t>(spec.beta_scale));
  hasher.UpdateInt(std::bit_cast<int32_t>(spec.output_gate_scale));
  hasher.UpdateInt(static_cast<int64_t>(spec.output_gate));
  hasher.UpdateInt(static_cast<int64_t>(spec.norm_weight));
  hasher.UpdateInt(static_cast<int64_t>(spec.convolutions));
  hasher.UpdateInt(static_cast<int64_t>(spec.a_log));
  hasher.UpdateInt(static_cast<int64_t>(spec.value_heads));
  if (!dims.decays_by_channel() && spec.decay_gate == DecayGate::kSoftplus) return;  // the same for older families
  hasher.UpdateField("decay");
  hasher.UpdateInt(static_cast<int64_t>(dims.decay));
  hasher.UpdateInt(static_cast<int64_t>(spec.decay_gate));
  hasher.UpdateInt(std::bit_cast<int32_t>(spec.decay_lower_bound));
  hasher.UpdateInt(spec.decay_rank);
  hasher.UpdateInt(spec.output_gate_rank);
}

}  // namespace

ModelDigests DigestModel(const ModelConfig& config, const std::vector<LayerTensors>& layers,
                         const DigestOptions& options) {
  std::vector<HashedLayer> hashed(layers.size());
  ThreadPool pool(std::min(AvailableProcessors(), static_cast<int>(std::max<size_t>(layers.size(), 1))));
  pool.ParallelFor(static_cast<int64_t>(layers.size()), [&](int64_t i, int) {
    hashed[static_cast<size_t>(i)] = HashLayer(*config.family, layers[static_cast<size_t>(i)], options.adapter);
  });

  Hasher hasher;
  hasher.UpdateField(kVersion);
  HashSpec(config.spec, hasher);
  hasher.UpdateInt(config.num_layers);
  hasher.UpdateInt(static_cast<int64_t>(hashed.size()));
  if (options.quantized) hasher.UpdateField("quantised to Q8_0");
  for (const HashedLayer& layer : hashed) hasher.UpdateField(layer.with_adapter.ToHex());

  ModelDigests digests{.fingerprint = hasher.Finish().ToHex(), .tensors = {}, .layers = {}};
  for (const auto& [tensor, stored] : layers.front().tensors) {
    digests.tensors.emplace_back(LayerTensorName(*config.family, tensor));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const int32_t layer = layers[i].layer;
    digests.layers.push_back({.layer = layer,
                              .format = FormatsOf(layers[i], /*matrices=*/true, options.gguf),
                              .vector_format = FormatsOf(layers[i], /*matrices=*/false, options.gguf),
                              .xxh3 = hashed[i].tensors.ToHex(),
                              .has_adapter = options.adapter != nullptr && options.adapter->layers.contains(layer)});
  }
  return digests;
}

}  // namespace gdn
