#include "server/model/loaded_model.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/thread_pool.h"
#include "server/model/checkpoint_files.h"
#include "server/model/layer_tensors.h"

namespace gdn {
namespace {

// Raised when the meaning of the hashed fields changes, so that old state files are told apart rather than misread.
constexpr std::string_view kVersion = "gdn.model.1";

Hash128 HashLayer(const LayerTensors& layer) {
  Hasher hasher;
  hasher.UpdateInt(layer.layer);
  for (const auto& [tensor, view] : layer.tensors) {
    hasher.UpdateField(LayerTensorName(tensor));
    hasher.UpdateField(DTypeName(view.dtype));
    hasher.UpdateInt(static_cast<int64_t>(view.shape.size()));
    for (const int64_t dim : view.shape) hasher.UpdateInt(dim);
    hasher.UpdateField(view.data);
  }
  return hasher.Finish();
}

// What a model is, in 32 hexadecimal digits: equal for equal numerics, however the checkpoint is cut into files. Covers
// the config as far as the layers depend on it and every Gated DeltaNet tensor's name, dtype, shape and bytes; not the
// names above the layer, the other layers, the file layout or the folder. Reads every weight once, on all processors.
std::string ModelFingerprint(const ModelConfig& config, const std::vector<LayerTensors>& layers) {
  std::vector<Hash128> digests(layers.size());
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadPool pool(std::min(processors, static_cast<int>(std::max<size_t>(layers.size(), 1))));
  pool.ParallelFor(static_cast<int64_t>(layers.size()), [&](int64_t i, int) {
    digests[static_cast<size_t>(i)] = HashLayer(layers[static_cast<size_t>(i)]);
  });

  const LayerDims& dims = config.dims;
  Hasher hasher;
  hasher.UpdateField(kVersion);
  for (const int32_t dim :
       {dims.key_heads, dims.value_heads, dims.key_dim, dims.value_dim, dims.conv_width, dims.hidden_size}) {
    hasher.UpdateInt(dim);
  }
  hasher.UpdateField(config.layout == ProjectionLayout::kInterleaved ? "interleaved" : "flat");
  hasher.UpdateInt(std::bit_cast<int32_t>(config.norm_epsilon));
  hasher.UpdateInt(config.num_layers);
  hasher.UpdateInt(static_cast<int64_t>(digests.size()));
  for (const Hash128& digest : digests) hasher.UpdateField(digest.ToHex());
  return hasher.Finish().ToHex();
}

}  // namespace

// Fills a LoadedModel. Everything is checked before the backend is asked for memory.
class ModelLoader {
 public:
  ModelLoader(Backend& backend, const std::string& name, const std::string& directory)
      : backend_(backend), directory_(directory) {
    model_.name_ = name;
  }

  absl::StatusOr<LoadedModel> Load() {
    GDN_RETURN_IF_ERROR(LoadConfig());
    GDN_ASSIGN_OR_RETURN(CheckpointFiles files, CheckpointFiles::Open(directory_));
    GDN_ASSIGN_OR_RETURN(const std::vector<LayerTensors> layers, FindLayerTensors(model_.config_, files));
    model_.files_ = files.ReleaseFiles();
    model_.weight_dtype_ = layers.front().tensors.at(LayerTensor::kOut).dtype;
    for (const LayerTensors& layer : layers) GDN_RETURN_IF_ERROR(LoadLayer(layer));
    GDN_RETURN_IF_ERROR(backend_.Synchronize());
    model_.fingerprint_ = ModelFingerprint(model_.config_, layers);
    return std::move(model_);
  }

 private:
  absl::Status LoadConfig() {
    const std::string path = StrCat(directory_, "/config.json");
    const auto file = MappedFile::Open(path);
    if (!file.ok()) return file.status();
    auto config = ParseModelConfig(file->bytes());
    if (!config.ok()) return WithPrefix(config.status(), StrCat("'", path, "'"));
    model_.config_ = *std::move(config);
    return absl::OkStatus();
  }

  absl::Status LoadLayer(const LayerTensors& layer) {
    const ModelConfig& config = model_.config_;
    LayerWeights weights;
    weights.dims = config.dims;
    weights.layout = config.layout;
    weights.a_log_convention = ALogConvention::kRaw;
    weights.norm_epsilon = config.norm_epsilon;
    if (config.layout == ProjectionLayout::kInterleaved) {
      GDN_ASSIGN_OR_RETURN(weights.in_qkv, Matrix(layer, LayerTensor::kInQkvz));
      GDN_ASSIGN_OR_RETURN(weights.in_b, Matrix(layer, LayerTensor::kInBa));
    } else {
      GDN_ASSIGN_OR_RETURN(weights.in_qkv, Matrix(layer, LayerTensor::kInQkv));
      GDN_ASSIGN_OR_RETURN(weights.in_z, Matrix(layer, LayerTensor::kInZ));
      GDN_ASSIGN_OR_RETURN(weights.in_b, Matrix(layer, LayerTensor::kInB));
      GDN_ASSIGN_OR_RETURN(weights.in_a, Matrix(layer, LayerTensor::kInA));
    }
    GDN_ASSIGN_OR_RETURN(weights.out, Matrix(layer, LayerTensor::kOut));
    GDN_ASSIGN_OR_RETURN(weights.conv_weight, Floats(layer, LayerTensor::kConv));
    GDN_ASSIGN_OR_RETURN(weights.a_log, Floats(layer, LayerTensor::kALog));
    GDN_ASSIGN_OR_RETURN(weights.dt_bias, Floats(layer, LayerTensor::kDtBias));
    GDN_ASSIGN_OR_RETURN(weights.norm_weight, Floats(layer, LayerTensor::kNorm));
    if (const absl::Status status = ValidateLayerWeights(weights); !status.ok()) {
      return WithPrefix(status, StrCat("'", directory_, "', layer ", layer.layer));
    }
    model_.layers_.emplace(layer.layer, weights);
    return absl::OkStatus();
  }

  // In the mapped file where the backend can read it there, else a copy; in the checkpoint's dtype either way.
  absl::StatusOr<WeightMatrix> Matrix(const LayerTensors& layer, LayerTensor tensor) {
    const TensorView& view = layer.tensors.at(tensor);
    WeightMatrix matrix{.dtype = view.dtype, .data = view.data.data(), .rows = view.shape[0], .cols = view.shape[1]};
    const bool aligned = reinterpret_cast<uintptr_t>(view.data.data()) % DTypeSize(view.dtype) == 0;
    if (!backend_.info().unified_memory || !aligned) {
      GDN_ASSIGN_OR_RETURN(matrix.data, Copy(view.data.data(), view.data.size()));
    }
    return matrix;
  }

  absl::StatusOr<const float*> Floats(const LayerTensors& layer, LayerTensor tensor) {
    const TensorView& view = layer.tensors.at(tensor);
    std::vector<float> values(static_cast<size_t>(view.ElementCount()));
    ConvertToFloat(view.dtype, view.data.data(), values.size(), values.data());
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
  const std::string& directory_;
  LoadedModel model_;
};

absl::StatusOr<LoadedModel> LoadModel(Backend& backend, const std::string& name, const std::string& directory) {
  return ModelLoader(backend, name, directory).Load();
}

}  // namespace gdn
