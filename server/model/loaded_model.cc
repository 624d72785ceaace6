#include "server/model/loaded_model.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/processors.h"
#include "base/threads/thread_pool.h"
#include "server/checkpoint/lora_adapter.h"
#include "server/checkpoint/slice_layer.h"
#include "server/checkpoint/tensor_errors.h"
#include "server/model/served_layer.h"

namespace gdn {
namespace {

// Version of the fingerprint. It is raised when the meaning of the hashed fields changes, so that old state files are
// refused and not misread.
constexpr std::string_view kVersion = "gdn.model.1";

Hash128 HashLayer(const ModelFamily& family, const LayerTensors& layer, const LoraAdapter* adapter) {
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
  if (adapter == nullptr || adapter->layers.count(layer.layer) == 0) return hasher.Finish();
  for (const auto& [projection, pair] : adapter->layers.at(layer.layer)) {
    hasher.UpdateField(StrCat("adapter of ", LayerTensorName(family, projection)));
    update("lora_A", DTypeName(pair.a.dtype), pair.a.shape, pair.a.data);
    update("lora_B", DTypeName(pair.b.dtype), pair.b.shape, pair.b.data);
    hasher.UpdateInt(std::bit_cast<int64_t>(pair.scale));
  }
  return hasher.Finish();
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

// Returns a model's fingerprint, 32 hexadecimal digits: equal for equal numerics, however the checkpoint is cut into
// files. It covers the config as far as the layers depend on it; the name, format, shape and bytes of each Gated
// DeltaNet tensor and of an adapter's pairs for them; and whether they are quantised here. It does not cover names
// above the layer, other layers, the file layout or the folder. Reads every weight once, on all processors.
std::string ModelFingerprint(const ModelConfig& config, const std::vector<LayerTensors>& layers,
                             const LoraAdapter* adapter, bool quantized) {
  std::vector<Hash128> digests(layers.size());
  ThreadPool pool(std::min(AvailableProcessors(), static_cast<int>(std::max<size_t>(layers.size(), 1))));
  pool.ParallelFor(static_cast<int64_t>(layers.size()), [&](int64_t i, int) {
    digests[static_cast<size_t>(i)] = HashLayer(*config.family, layers[static_cast<size_t>(i)], adapter);
  });

  Hasher hasher;
  hasher.UpdateField(kVersion);
  HashSpec(config.spec, hasher);
  hasher.UpdateInt(config.num_layers);
  hasher.UpdateInt(static_cast<int64_t>(digests.size()));
  if (quantized) hasher.UpdateField("quantised to Q8_0");
  for (const Hash128& digest : digests) hasher.UpdateField(digest.ToHex());
  return hasher.Finish().ToHex();
}

}  // namespace

int64_t WeightMemory::total() const {
  int64_t sum = vectors;
  for (const auto& [format, bytes] : projections) sum += bytes;
  return sum;
}

std::vector<std::string> WeightMemory::Formats() const {
  std::vector<std::pair<int64_t, WeightFormat>> formats;
  for (const auto& [format, bytes] : projections) formats.emplace_back(-bytes, format);
  std::sort(formats.begin(), formats.end());
  std::vector<std::string> names;
  for (const auto& [bytes, format] : formats) names.emplace_back(WeightFormatName(format));
  return names;
}

// Fills a LoadedModel. Before the backend allocates memory, it checks that the checkpoint's weights are finite and that
// the slice fits. An adapter's sums and quantised weights are checked layer by layer.
class ModelLoader {
 public:
  ModelLoader(Backend& backend, const std::string& name, Checkpoint checkpoint, std::optional<LoraAdapter> adapter,
              const LoadOptions& options)
      : backend_(backend),
        options_{.takes = [&backend](WeightFormat format) { return backend.info().TakesWeights(format); },
                 .quantize_q8_0 = options.quantize_q8_0},
        whole_(std::move(checkpoint.config)),
        layers_(std::move(checkpoint.layers)),
        adapter_(std::move(adapter)) {
    model_.name_ = name;
    model_.config_ = whole_;
    if (!options.heads.is_whole()) model_.heads_ = options.heads;
    model_.files_ = std::move(checkpoint.files);
  }

  absl::StatusOr<LoadedModel> Load() {
    const HeadSlice& heads = model_.heads_;
    GDN_RETURN_IF_ERROR(CheckSlice(whole_, layers_, heads, options_.quantize_q8_0));
    for (const LayerTensors& layer : layers_) GDN_RETURN_IF_ERROR(CheckLayerIsFinite(layer));
    model_.config_.spec = SliceSpec(whole_.spec, heads);
    for (const LayerTensors& layer : layers_) {
      if (adapter_.has_value()) {
        const MadeLayer merged = MergeAdapter(*adapter_, layer);
        // A sum of finite weights and finite factors may still overflow float32.
        GDN_RETURN_IF_ERROR(CheckLayerIsFinite(merged.tensors));
        GDN_RETURN_IF_ERROR(LoadLayer(SliceLayer(whole_.spec, merged.tensors, heads), merged));
      } else {
        GDN_RETURN_IF_ERROR(LoadLayer(SliceLayer(whole_.spec, layer, heads), {}));
      }
    }
    model_.weight_dtype_ = WidenedDType(model_.layers_.begin()->second.out.format);
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    model_.whole_fingerprint_ =
        ModelFingerprint(whole_, layers_, adapter_.has_value() ? &*adapter_ : nullptr, quantized_);
    model_.fingerprint_ = SliceFingerprint(model_.whole_fingerprint_, heads);
    return std::move(model_);
  }

 private:
  absl::Status CheckLayerIsFinite(const LayerTensors& layer) const {
    for (const auto& [tensor, stored] : layer.tensors) {
      GDN_RETURN_IF_ERROR(WithPrefix(
          CheckFinite(stored, tensor == LayerTensor::kALog ? MinusInfinity::kTaken : MinusInfinity::kRefused),
          StrCat("model '", model_.name_, "', layer ", layer.layer, ", tensor '",
                 LayerTensorName(*whole_.family, tensor), "'")));
    }
    return absl::OkStatus();
  }

  // `merged`: has bytes that tensors of the layer may point to. They are freed after the call.
  absl::Status LoadLayer(const MadeLayer& sliced, const MadeLayer& merged) {
    const LayerTensors& layer = sliced.tensors;
    const LayerSpec& spec = model_.config_.spec;
    const std::string place = StrCat("model '", model_.name_, "', layer ", layer.layer);
    GDN_ASSIGN_OR_RETURN(const ServedLayer served, WithPrefix(ServeLayer(spec, layer, options_), place));
    quantized_ = quantized_ || served.quantized;
    for (const auto& [tensor, stored] : layer.tensors) model_.memory_.in_files += FileBytes(stored);
    const auto matrix = [&](const ServedMatrix& of_layer) {
      const char* const data = of_layer.data().data();
      return Matrix(of_layer, /*in_file=*/of_layer.made.empty() && !sliced.HasMade(data) && !merged.HasMade(data));
    };
    LayerWeights weights;
    weights.spec = ServedForm(spec);
    weights.tiled_out = served.tiled_out;
    GDN_ASSIGN_OR_RETURN(weights.in_qkv, matrix(served.in_qkv));
    GDN_ASSIGN_OR_RETURN(weights.in_z, matrix(served.in_z));
    GDN_ASSIGN_OR_RETURN(weights.in_b, matrix(served.in_b));
    GDN_ASSIGN_OR_RETURN(weights.in_a, matrix(served.in_a));
    GDN_ASSIGN_OR_RETURN(weights.z_up, matrix(served.z_up));
    GDN_ASSIGN_OR_RETURN(weights.a_up, matrix(served.a_up));
    GDN_ASSIGN_OR_RETURN(weights.out, matrix(served.out));
    GDN_ASSIGN_OR_RETURN(weights.conv_weight, Vector(served.conv_weight));
    GDN_ASSIGN_OR_RETURN(weights.a_log, Vector(served.a_log));
    GDN_ASSIGN_OR_RETURN(weights.dt_bias, Vector(served.dt_bias));
    GDN_ASSIGN_OR_RETURN(weights.norm_weight, Vector(served.norm_weight));
    GDN_RETURN_IF_ERROR(WithPrefix(ValidateLayerWeights(weights), place));
    model_.layers_.emplace(layer.layer, weights);
    return absl::OkStatus();
  }

  // Points into the mapped file if the backend can read it there. Otherwise makes a copy.
  absl::StatusOr<WeightMatrix> Matrix(const ServedMatrix& served, bool in_file) {
    if (served.rows == 0) return WeightMatrix{};
    const std::string_view data = served.data();
    WeightMatrix matrix{.format = served.format,
                        .data = data.data(),
                        .rows = served.rows,
                        .cols = served.cols,
                        .scales = served.scales.empty() ? nullptr : served.scales.data()};
    const auto alignment = static_cast<uintptr_t>(AlignmentOf(served.format));
    const bool aligned = reinterpret_cast<uintptr_t>(data.data()) % alignment == 0;
    const int64_t bytes = backend_.WeightBytes(served.format, served.rows, served.cols);
    if (!backend_.info().unified_memory || !in_file || !aligned) {
      GDN_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(backend_, static_cast<size_t>(bytes)));
      GDN_RETURN_IF_ERROR(backend_.CopyWeightsIn(buffer.data(), matrix));
      GDN_ASSIGN_OR_RETURN(matrix.data, Keep(std::move(buffer)));
    }
    model_.memory_.projections[served.format] += bytes;
    model_.memory_.widened_matrices += served.widened ? 1 : 0;
    if (!served.scales.empty()) {
      GDN_ASSIGN_OR_RETURN(matrix.scales, Vector(served.scales));
    }
    return matrix;
  }

  absl::StatusOr<const float*> Vector(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    GDN_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(backend_, bytes));
    GDN_RETURN_IF_ERROR(backend_.CopyIn(buffer.data(), values.data(), bytes));
    model_.memory_.vectors += static_cast<int64_t>(bytes);
    GDN_ASSIGN_OR_RETURN(const void* data, Keep(std::move(buffer)));
    return static_cast<const float*>(data);
  }

  // Waits for copies, because they may run behind the caller and the caller's temporaries end soon. Then keeps the
  // buffer.
  absl::StatusOr<const void*> Keep(DeviceBuffer buffer) {
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    model_.buffers_.push_back(std::move(buffer));
    return model_.buffers_.back().data();
  }

  Backend& backend_;
  const ServeLayerOptions options_;
  const ModelConfig whole_;  // with all heads, as in the files
  const std::vector<LayerTensors> layers_;
  const std::optional<LoraAdapter> adapter_;
  bool quantized_ = false;
  LoadedModel model_;
};

absl::StatusOr<LoadedModel> LoadModel(Backend& backend, const std::string& name, const std::string& path,
                                      const LoadOptions& options) {
  GDN_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(path));
  return LoadModel(backend, name, std::move(checkpoint), options);
}

absl::StatusOr<LoadedModel> LoadModel(Backend& backend, const std::string& name, Checkpoint checkpoint,
                                      const LoadOptions& options) {
  const ModelFamily& family = *checkpoint.config.family;
  if (!family.verified && !options.allow_unverified_family) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kInvalidSpec,
                     StrCat("model '", name, "' is of the family ", family.name,
                            ", whose layers have not been compared with a reference implementation's; expected a "
                            "verified family, or --allow-unverified-family"));
  }
  GDN_RETURN_IF_ERROR(CheckHeadSlice(options.heads, checkpoint.config.spec.dims));
  if (options.quantize_q8_0 && !backend.info().TakesWeights(WeightFormat::kQ8_0)) {
    return MakeError(absl::StatusCode::kUnimplemented, reason::kDeviceUnsupported,
                     StrCat("model '", name, "' cannot be quantised to Q8_0: backend ", backend.info().name,
                            " takes no weights of that format; serve it without --quantize"));
  }
  std::optional<LoraAdapter> adapter;
  if (!options.adapter.empty()) {
    GDN_ASSIGN_OR_RETURN(adapter, WithPrefix(OpenLoraAdapter(options.adapter, checkpoint.config),
                                             StrCat("model '", name, "', adapter")));
  }
  return ModelLoader(backend, name, std::move(checkpoint), std::move(adapter), options).Load();
}

}  // namespace gdn
