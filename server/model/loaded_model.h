// Loads a checkpoint's Gated DeltaNet layers onto a backend, in the form that kernels take.
//
// If the backend shares the host's memory, projections that need no change stay in the mapped files in their own
// format. Quantised projections stay quantised if the backend takes their format. The small vectors (conv, A_log,
// dt_bias, norm) are widened to float32. Differences between families end here (ServedForm): separate parts are joined,
// and factors of the norm's output go into its weight. If a slice of the value heads is loaded, only its rows and
// columns are (base/head_slice.h). If only some layers are loaded, the others are read once, for the fingerprint.
// Thread safety: a LoadedModel is constant after loading. Ownership: it owns the mappings and copies that its weights
// point into.
//
//   GDN_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(backend, "qwen", "/models/Qwen3-Next-80B-A3B"));
//   const LayerWeights& weights = model.layers().at(0);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/head_slice.h"
#include "kernels/backend.h"
#include "kernels/layer/layer_weights.h"
#include "server/checkpoint/checkpoint.h"
#include "server/model/layer_ranges.h"
#include "server/model/model_digests.h"

namespace gdn {

// Memory that the weights of all layers take.
struct WeightMemory {
  std::map<WeightFormat, int64_t> projections;  // bytes on the backend, by the format in which kernels read them
  int64_t vectors = 0;                          // bytes of all other weights, and of F8_E4M3's scales
  int64_t in_files = 0;          // bytes of the same tensors in the checkpoint; with an adapter, an estimate
  int64_t widened_matrices = 0;  // matrices that are quantised in the checkpoint and F32 here

  int64_t total() const;
  // Names of the projections' formats, the one with the most bytes first.
  std::vector<std::string> Formats() const;
};

class LoadedModel {
 public:
  const std::string& name() const { return name_; }
  // Returns the checkpoint's config. Its spec.dims count the loaded heads only; its gdn_layers has the layers that are
  // not loaded too.
  const ModelConfig& config() const { return config_; }
  // Dtype of the first layer's out-projection; F32 if it is quantised.
  DType weight_dtype() const { return weight_dtype_; }
  // Returns 32 hexadecimal digits that are equal for equal numerics. They cover the config, the weights of all GDN
  // layers (also those that are not loaded), the adapter, the quantisation and the loaded heads.
  const std::string& fingerprint() const { return fingerprint_; }
  // Returns the fingerprint that the same layers have with all heads.
  const std::string& whole_fingerprint() const { return digests_.fingerprint; }
  const HeadSlice& heads() const { return heads_; }                          // loaded value heads; none: all heads
  const std::map<int32_t, LayerWeights>& layers() const { return layers_; }  // loaded layers, by decoder layer index
  const ModelDigests& digests() const { return digests_; }                   // digests of the loaded layers
  const WeightMemory& memory() const { return memory_; }

 private:
  friend class ModelLoader;
  std::string name_;
  ModelConfig config_;
  DType weight_dtype_ = DType::kF32;
  std::string fingerprint_;
  HeadSlice heads_;
  std::map<int32_t, LayerWeights> layers_;
  ModelDigests digests_;
  WeightMemory memory_;
  CheckpointStorage files_;
  std::vector<DeviceBuffer> buffers_;
};

struct LoadOptions {
  // Serve a family even if nobody has compared its layers with a reference implementation.
  bool allow_unverified_family = false;
  // Value heads of every layer to load. Default: all heads.
  HeadSlice heads = {};
  // Ranges of decoder layers, of which the Gated DeltaNet layers are loaded. Empty: all layers.
  LayerRanges layers = {};
  // Quantise large projections to Q8_0 if the checkpoint has them in F32, F16 or BF16.
  bool quantize_q8_0 = false;
  // The folder of a LoRA adapter to merge into the projections (lora_adapter.h). "": none.
  std::string adapter = {};
};

// Load the layers of a checkpoint, from a path or already opened, onto the backend. Errors of OpenCheckpoint,
// OpenLoraAdapter, CheckSlice and GdnLayersIn. FAILED_PRECONDITION (INVALID_SPEC) for a family that the options do not
// allow. UNIMPLEMENTED (DEVICE_UNSUPPORTED) if weights are to be quantised and the backend takes no Q8_0.
// INVALID_ARGUMENT for weights that are not finite or cannot be quantised. RESOURCE_EXHAUSTED if the backend has no
// memory for the weights. Blocks while it reads and copies all weights. The backend must outlive the result.
absl::StatusOr<LoadedModel> LoadModel(Backend& backend, const std::string& name, const std::string& path,
                                      const LoadOptions& options = {});
absl::StatusOr<LoadedModel> LoadModel(Backend& backend, const std::string& name, Checkpoint checkpoint,
                                      const LoadOptions& options = {});

}  // namespace gdn
