#include "server/model/loaded_model.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/thread_pool.h"

namespace gdn {
namespace {

// Raised when the meaning of the hashed fields changes, so that old state files are told apart rather than misread.
constexpr std::string_view kVersion = "gdn.model.1";

Hash128 HashLayer(const ModelFamily& family, const LayerTensors& layer) {
  Hasher hasher;
  hasher.UpdateInt(layer.layer);
  for (const auto& [tensor, view] : layer.tensors) {
    hasher.UpdateField(LayerTensorName(family, tensor));
    hasher.UpdateField(DTypeName(view.dtype));
    hasher.UpdateInt(static_cast<int64_t>(view.shape.size()));
    for (const int64_t dim : view.shape) hasher.UpdateInt(dim);
    hasher.UpdateField(view.data);
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
  ModelLoader(Backend& backend, const std::string& name, Checkpoint checkpoint)
      : backend_(backend), layers_(std::move(checkpoint.layers)) {
    model_.name_ = name;
    model_.config_ = std::move(checkpoint.config);
    model_.files_ = std::move(checkpoint.files);
  }

  absl::StatusOr<LoadedModel> Load() {
    model_.weight_dtype_ = layers_.front().tensors.at(LayerTensor::kOut).dtype;
    for (const LayerTensors& layer : layers_) GDN_RETURN_IF_ERROR(LoadLayer(layer));
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    model_.fingerprint_ = ModelFingerprint(model_.config_, layers_);
    return std::move(model_);
  }

 private:
  using Parts = std::initializer_list<LayerTensor>;  // of one matrix or vector, side by side

  absl::Status LoadLayer(const LayerTensors& layer) {
    using T = LayerTensor;
    const LayerSpec& spec = model_.config_.spec;
    LayerWeights weights;
    weights.spec = ServedForm(spec);
    switch (spec.projections) {
      case ProjectionLayout::kInterleaved: {
        GDN_ASSIGN_OR_RETURN(weights.in_qkv, Matrix(layer, {T::kInQkvz}));
        GDN_ASSIGN_OR_RETURN(weights.in_b, Matrix(layer, {T::kInBa}));
        break;
      }
      case ProjectionLayout::kFlat: {
        GDN_ASSIGN_OR_RETURN(weights.in_qkv, Matrix(layer, {T::kInQkv}));
        break;
      }
      case ProjectionLayout::kSeparate: {
        GDN_ASSIGN_OR_RETURN(weights.in_qkv, Matrix(layer, {T::kInQ, T::kInK, T::kInV}));
        break;
      }
    }
    if (spec.projections != ProjectionLayout::kInterleaved) {
      GDN_ASSIGN_OR_RETURN(weights.in_z, Matrix(layer, {T::kInZ}));
      GDN_ASSIGN_OR_RETURN(weights.in_b, Matrix(layer, {T::kInB}));
      GDN_ASSIGN_OR_RETURN(weights.in_a, Matrix(layer, {T::kInA}));
    }
    GDN_ASSIGN_OR_RETURN(weights.out, Matrix(layer, {T::kOut}));
    const bool joint = spec.convolutions == ConvLayout::kJoint;
    GDN_ASSIGN_OR_RETURN(weights.conv_weight,
                         Vector(joint ? Floats(layer, {T::kConv}) : Floats(layer, {T::kConvQ, T::kConvK, T::kConvV})));
    GDN_ASSIGN_OR_RETURN(weights.a_log, Vector(Floats(layer, {T::kALog})));
    GDN_ASSIGN_OR_RETURN(weights.dt_bias, Vector(Floats(layer, {T::kDtBias})));
    GDN_ASSIGN_OR_RETURN(weights.norm_weight, Vector(NormWeights(layer)));
    if (const absl::Status status = ValidateLayerWeights(weights); !status.ok()) {
      return WithPrefix(status, StrCat("model '", model_.name_, "', layer ", layer.layer));
    }
    model_.layers_.emplace(layer.layer, weights);
    return absl::OkStatus();
  }

  // In the mapped file where the backend can read it there and it is one part, else a copy; in the checkpoint's dtype,
  // or in float32 where the parts have several.
  absl::StatusOr<WeightMatrix> Matrix(const LayerTensors& layer, Parts parts) {
    const TensorView& first = layer.tensors.at(*parts.begin());
    WeightMatrix matrix{.dtype = first.dtype, .data = first.data.data(), .rows = 0, .cols = first.shape[1]};
    bool one_dtype = true;
    for (const LayerTensor part : parts) {
      const TensorView& view = layer.tensors.at(part);
      matrix.rows += view.shape[0];
      one_dtype = one_dtype && view.dtype == first.dtype;
    }
    if (!one_dtype) {
      matrix.dtype = DType::kF32;
      GDN_ASSIGN_OR_RETURN(matrix.data, Vector(Floats(layer, parts)));
      return matrix;
    }
    const bool aligned = reinterpret_cast<uintptr_t>(matrix.data) % DTypeSize(matrix.dtype) == 0;
    if (parts.size() == 1 && aligned && backend_.info().unified_memory) return matrix;
    const size_t bytes = static_cast<size_t>(matrix.rows * matrix.cols) * DTypeSize(matrix.dtype);
    GDN_ASSIGN_OR_RETURN(char* to, Allocate<char>(bytes));
    matrix.data = to;
    for (const LayerTensor part : parts) {
      const std::string_view data = layer.tensors.at(part).data;
      GDN_RETURN_IF_ERROR(backend_.CopyIn(to, data.data(), data.size()));
      to += data.size();
    }
    // Copies may run behind the caller, whose mapping may end.
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    return matrix;
  }

  static std::vector<float> Floats(const LayerTensors& layer, Parts parts) {
    std::vector<float> values;
    for (const LayerTensor part : parts) {
      const TensorView& view = layer.tensors.at(part);
      const size_t begin = values.size();
      const size_t count = static_cast<size_t>(view.ElementCount());
      values.resize(begin + count);
      ConvertToFloat(view.dtype, view.data.data(), count, values.data() + begin);
    }
    return values;
  }

  // All that multiplies the normalised output, but for the gate.
  std::vector<float> NormWeights(const LayerTensors& layer) const {
    const LayerSpec& spec = model_.config_.spec;
    std::vector<float> weights = Floats(layer, {LayerTensor::kNorm});
    for (float& weight : weights) {
      if (spec.norm_weight == NormWeight::kOnePlus) weight += 1.0f;
      weight *= spec.output_gate_scale;
    }
    return weights;
  }

  absl::StatusOr<const float*> Vector(const std::vector<float>& values) {
    GDN_ASSIGN_OR_RETURN(float* data, Allocate<float>(values.size() * sizeof(float)));
    GDN_RETURN_IF_ERROR(backend_.CopyIn(data, values.data(), values.size() * sizeof(float)));
    // Copies may run behind the caller, whose temporaries end here.
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    return data;
  }

  template <typename T>
  absl::StatusOr<T*> Allocate(size_t bytes) {
    GDN_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(backend_, bytes));
    model_.buffers_.push_back(std::move(buffer));
    return static_cast<T*>(model_.buffers_.back().data());
  }

  Backend& backend_;
  const std::vector<LayerTensors> layers_;
  LoadedModel model_;
};

absl::StatusOr<LoadedModel> LoadModel(Backend& backend, const std::string& name, const std::string& directory) {
  GDN_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(directory));
  return LoadModel(backend, name, std::move(checkpoint));
}

absl::StatusOr<LoadedModel> LoadModel(Backend& backend, const std::string& name, Checkpoint checkpoint) {
  return ModelLoader(backend, name, std::move(checkpoint)).Load();
}

}  // namespace gdn
