#include "server/model/loaded_model.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/lora_adapter.h"
#include "server/checkpoint/slice_layer.h"
#include "server/checkpoint/tensor_errors.h"
#include "server/model/served_layer.h"

namespace gdn {

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
  // `served`: the Gated DeltaNet layers to load, ascending.
  ModelLoader(Backend& backend, const std::string& name, Checkpoint checkpoint, const std::vector<int32_t>& served,
              std::optional<LoraAdapter> adapter, const LoadOptions& options)
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
    std::ranges::copy_if(layers_, std::back_inserter(served_), [&served](const LayerTensors& layer) {
      return std::ranges::binary_search(served, layer.layer);
    });
  }

  absl::StatusOr<LoadedModel> Load() {
    const HeadSlice& heads = model_.heads_;
    GDN_RETURN_IF_ERROR(CheckSlice(whole_, served_, heads, options_.quantize_q8_0));
    for (const LayerTensors& layer : served_) GDN_RETURN_IF_ERROR(CheckLayerIsFinite(layer));
    model_.config_.spec = SliceSpec(whole_.spec, heads);
    for (const LayerTensors& layer : served_) {
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
    Digest();
    model_.fingerprint_ = SliceFingerprint(model_.whole_fingerprint(), heads);
    return std::move(model_);
  }

 private:
  // The fingerprint covers the layers that are not served too, so a state is known on every server of the model.
  void Digest() {
    model_.digests_ =
        DigestModel(whole_, layers_,
                    {.adapter = adapter_.has_value() ? &*adapter_ : nullptr,
                     .quantized = options_.quantize_q8_0 && std::ranges::any_of(layers_, HasFloatProjections),
                     .gguf = std::holds_alternative<GgufFile>(model_.files_)});
    std::erase_if(model_.digests_.layers,
                  [this](const LayerDigest& digest) { return !model_.layers_.contains(digest.layer); });
  }

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
    for (const auto& [tensor, stored] : layer.tensors) model_.memory_.in_files += FileBytes(stored);
    const auto matrix = [&](const ServedMatrix& of_layer, bool meets_calls = false) {
      const char* const data = of_layer.data().data();
      return Matrix(of_layer, /*in_file=*/of_layer.made.empty() && !sliced.HasMade(data) && !merged.HasMade(data),
                    meets_calls);
    };
    LayerWeights weights;
    weights.spec = ServedForm(spec);
    weights.tiled_out = served.tiled_out;
    GDN_ASSIGN_OR_RETURN(weights.in_qkv, matrix(served.in_qkv, /*meets_calls=*/true));
    GDN_ASSIGN_OR_RETURN(weights.in_z, matrix(served.in_z, /*meets_calls=*/true));
    GDN_ASSIGN_OR_RETURN(weights.in_b, matrix(served.in_b, /*meets_calls=*/true));
    GDN_ASSIGN_OR_RETURN(weights.in_a, matrix(served.in_a, /*meets_calls=*/true));
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

  // Points into the mapped file if the backend can read it there. Otherwise makes a copy. `meets_calls`: as
  // BackendInfo::RowScalesFor.
  absl::StatusOr<WeightMatrix> Matrix(const ServedMatrix& served, bool in_file, bool meets_calls) {
    if (served.rows == 0) return WeightMatrix{};
    const std::string_view data = served.data();
    WeightMatrix matrix{.format = served.format,
                        .data = data.data(),
                        .rows = served.rows,
                        .cols = served.cols,
                        .scales = served.scales.empty() ? nullptr : served.scales.data(),
                        .integer_halves = backend_.info().IntegerHalvesFor(served.format)};
    const std::vector<float> row_scales = backend_.info().RowScalesFor(matrix, meets_calls);
    if (!row_scales.empty()) matrix.scales = row_scales.data();
    const auto alignment = static_cast<uintptr_t>(AlignmentOf(served.format));
    const bool aligned = reinterpret_cast<uintptr_t>(data.data()) % alignment == 0;
    const int64_t bytes = backend_.WeightBytes(matrix);
    if (!backend_.info().unified_memory || !in_file || !aligned || LiesAsHalves(matrix)) {
      GDN_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(backend_, static_cast<size_t>(bytes)));
      GDN_RETURN_IF_ERROR(backend_.CopyWeightsIn(buffer.data(), matrix));
      GDN_ASSIGN_OR_RETURN(matrix.data, Keep(std::move(buffer)));
    }
    model_.memory_.projections[served.format] += bytes;
    model_.memory_.widened_matrices += served.widened ? 1 : 0;
    const std::vector<float>& scales = row_scales.empty() ? served.scales : row_scales;
    if (!scales.empty()) {
      GDN_ASSIGN_OR_RETURN(matrix.scales, Vector(scales));
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
  const ModelConfig whole_;                 // with all heads, as in the files
  const std::vector<LayerTensors> layers_;  // every Gated DeltaNet layer of the model
  std::vector<LayerTensors> served_;        // those to load
  const std::optional<LoraAdapter> adapter_;
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
  GDN_ASSIGN_OR_RETURN(const std::vector<int32_t> served,
                       WithPrefix(GdnLayersIn(options.layers, checkpoint.config), StrCat("model '", name, "'")));
  std::optional<LoraAdapter> adapter;
  if (!options.adapter.empty()) {
    GDN_ASSIGN_OR_RETURN(adapter, WithPrefix(OpenLoraAdapter(options.adapter, checkpoint.config),
                                             StrCat("model '", name, "', adapter")));
  }
  return ModelLoader(backend, name, std::move(checkpoint), served, std::move(adapter), options).Load();
}

}  // namespace gdn
