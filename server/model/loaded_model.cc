#include "server/model/loaded_model.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/thread_pool.h"
#include "server/checkpoint/slice_layer.h"
#include "server/model/served_layer.h"

namespace gdn {
namespace {

// Raised when the meaning of the hashed fields changes, so that old state files are told apart rather than misread.
constexpr std::string_view kVersion = "gdn.model.1";

Hash128 HashLayer(const ModelFamily& family, const LayerTensors& layer) {
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
    update(LayerTensorName(family, tensor), EncodingName(stored.encoding), stored.shape, stored.data);
    if (stored.encoding != Encoding::kF8E4M3) continue;
    update(kScaleSuffix, DTypeName(stored.scales.dtype), stored.scales.shape, stored.scales.data);
  }
  return hasher.Finish();
}

std::string_view ProjectionsKey(ProjectionLayout layout) {
  switch (layout) {
    case ProjectionLayout::kInterleaved:
      return "interleaved";
    case ProjectionLayout::kFlat:
      return "flat";
    case ProjectionLayout::kSeparate:
      return "separate";
    case ProjectionLayout::kFlatGroupedBa:
      return "flat, b and a by key head";
  }
  return "";
}

void HashSpec(const LayerSpec& spec, Hasher& hasher) {
  const LayerDims& dims = spec.dims;
  for (const int32_t dim :
       {dims.key_heads, dims.value_heads, dims.key_dim, dims.value_dim, dims.conv_width, dims.hidden_size}) {
    hasher.UpdateInt(dim);
  }
  hasher.UpdateField(ProjectionsKey(spec.projections));
  hasher.UpdateInt(std::bit_cast<int32_t>(spec.norm_epsilon));
  // The first families had no more than that; their fingerprints stay as they were.
  if (spec == LayerSpec{.dims = dims, .norm_epsilon = spec.norm_epsilon, .projections = spec.projections}) return;
  hasher.UpdateField("formula");
  hasher.UpdateInt(std::bit_cast<int32_t>(spec.beta_scale));
  hasher.UpdateInt(std::bit_cast<int32_t>(spec.output_gate_scale));
  hasher.UpdateInt(static_cast<int64_t>(spec.output_gate));
  hasher.UpdateInt(static_cast<int64_t>(spec.norm_weight));
  hasher.UpdateInt(static_cast<int64_t>(spec.convolutions));
  hasher.UpdateInt(static_cast<int64_t>(spec.a_log));
  hasher.UpdateInt(static_cast<int64_t>(spec.value_heads));
  if (!dims.decays_by_channel() && spec.decay_gate == DecayGate::kSoftplus) return;  // as above, of the next ones
  hasher.UpdateField("decay");
  hasher.UpdateInt(static_cast<int64_t>(dims.decay));
  hasher.UpdateInt(static_cast<int64_t>(spec.decay_gate));
  hasher.UpdateInt(std::bit_cast<int32_t>(spec.decay_lower_bound));
  hasher.UpdateInt(spec.decay_rank);
  hasher.UpdateInt(spec.output_gate_rank);
}

// What a model is, in 32 hexadecimal digits: equal for equal numerics, however the checkpoint is cut into files. Covers
// the config as far as the layers depend on it and every Gated DeltaNet tensor's name, dtype, shape and bytes; not the
// names above the layer, the other layers, the file layout or the folder. Reads every weight once, on all processors.
std::string ModelFingerprint(const ModelConfig& config, const std::vector<LayerTensors>& layers) {
  std::vector<Hash128> digests(layers.size());
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadPool pool(std::min(processors, static_cast<int>(std::max<size_t>(layers.size(), 1))));
  pool.ParallelFor(static_cast<int64_t>(layers.size()), [&](int64_t i, int) {
    digests[static_cast<size_t>(i)] = HashLayer(*config.family, layers[static_cast<size_t>(i)]);
  });

  Hasher hasher;
  hasher.UpdateField(kVersion);
  HashSpec(config.spec, hasher);
  hasher.UpdateInt(config.num_layers);
  hasher.UpdateInt(static_cast<int64_t>(digests.size()));
  for (const Hash128& digest : digests) hasher.UpdateField(digest.ToHex());
  return hasher.Finish().ToHex();
}

}  // namespace

// Fills a LoadedModel. Everything is checked before the backend is asked for memory.
class ModelLoader {
 public:
  ModelLoader(Backend& backend, const std::string& name, Checkpoint checkpoint, const HeadSlice& heads)
      : backend_(backend), whole_(std::move(checkpoint.config)), layers_(std::move(checkpoint.layers)) {
    model_.name_ = name;
    model_.config_ = whole_;
    if (!heads.is_whole()) model_.heads_ = heads;
    model_.files_ = std::move(checkpoint.files);
  }

  absl::StatusOr<LoadedModel> Load() {
    const HeadSlice& heads = model_.heads_;
    GDN_RETURN_IF_ERROR(CheckSlice(whole_, layers_, heads));
    model_.config_.spec = SliceSpec(whole_.spec, heads);
    for (const LayerTensors& layer : layers_) GDN_RETURN_IF_ERROR(LoadLayer(SliceLayer(whole_.spec, layer, heads)));
    model_.weight_dtype_ = model_.layers_.begin()->second.out.dtype;
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    model_.whole_fingerprint_ = ModelFingerprint(whole_, layers_);
    model_.fingerprint_ = SliceFingerprint(model_.whole_fingerprint_, heads);
    return std::move(model_);
  }

 private:
  absl::Status LoadLayer(const SlicedLayer& sliced) {
    const LayerTensors& layer = sliced.tensors;
    const LayerSpec& spec = model_.config_.spec;
    const ServedLayer served = ServeLayer(spec, layer);
    const auto matrix = [&](const ServedMatrix& of_layer) {
      return Matrix(of_layer, /*in_file=*/of_layer.made.empty() && !sliced.HasMade(of_layer.data().data()));
    };
    LayerWeights weights;
    weights.spec = ServedForm(spec);
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
    if (const absl::Status status = ValidateLayerWeights(weights); !status.ok()) {
      return WithPrefix(status, StrCat("model '", model_.name_, "', layer ", layer.layer));
    }
    model_.layers_.emplace(layer.layer, weights);
    return absl::OkStatus();
  }

  // In the mapped file where the backend can read it there, else a copy.
  absl::StatusOr<WeightMatrix> Matrix(const ServedMatrix& served, bool in_file) {
    if (served.rows == 0) return WeightMatrix{};
    const std::string_view data = served.data();
    model_.weight_bytes_ += static_cast<int64_t>(data.size());
    WeightMatrix matrix{.dtype = served.dtype, .data = data.data(), .rows = served.rows, .cols = served.cols};
    const bool aligned = reinterpret_cast<uintptr_t>(data.data()) % DTypeSize(served.dtype) == 0;
    if (!backend_.info().unified_memory || !in_file || !aligned) {
      GDN_ASSIGN_OR_RETURN(matrix.data, Copy(data.data(), data.size()));
    }
    return matrix;
  }

  absl::StatusOr<const float*> Vector(const std::vector<float>& values) {
    model_.weight_bytes_ += static_cast<int64_t>(values.size() * sizeof(float));
    GDN_ASSIGN_OR_RETURN(void* data, Copy(values.data(), values.size() * sizeof(float)));
    return static_cast<const float*>(data);
  }

  absl::StatusOr<void*> Copy(const void* host, size_t bytes) {
    GDN_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(backend_, bytes));
    GDN_RETURN_IF_ERROR(backend_.CopyIn(buffer.data(), host, bytes));
    // Copies may run behind the caller, whose temporaries end here.
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    model_.buffers_.push_back(std::move(buffer));
    return model_.buffers_.back().data();
  }

  Backend& backend_;
  const ModelConfig whole_;  // of all heads, as the files have them
  const std::vector<LayerTensors> layers_;
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
  return ModelLoader(backend, name, std::move(checkpoint), options.heads).Load();
}

}  // namespace gdn
