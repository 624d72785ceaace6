// The tensors of a checkpoint's Gated DeltaNet layers: their names, their shapes, and where they lie.
//
// Thread safety: free functions. Ownership: views point into the CheckpointFiles they came from.
//
//   GDN_ASSIGN_OR_RETURN(std::vector<LayerTensors> layers, FindLayerTensors(config, files));
//   const StoredTensor& out = layers[0].tensors.at(LayerTensor::kOut);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint_files.h"
#include "server/checkpoint/model_config.h"
#include "server/checkpoint/stored_tensor.h"

namespace gdn {

// The parts of "{prefix}{layer}.{module}.{tensor}".
struct LayerTensorPlace {
  int32_t layer = 0;
  std::string_view tensor;
};

// Nothing for a name that is not below the family's module. The place points into `name`.
std::optional<LayerTensorPlace> PlaceOf(std::string_view name, std::string_view prefix, const ModelFamily& family);

struct LayerTensors {
  int32_t layer = 0;
  std::map<LayerTensor, StoredTensor> tensors;
};

// What a tensor's shape is; the rows of separate convolutions may only be known together, and are then -1.
std::vector<int64_t> LayerTensorShape(LayerTensor tensor, const LayerSpec& spec);

// Of decays by channel, whose vectors and kernels are stored with more or fewer dimensions of 1: gives the tensor the
// shape above where it is the same one otherwise. With `long_a_log` what A_log has behind its heads goes too.
void DropSpareDimensions(LayerTensor tensor, const LayerSpec& spec, bool long_a_log, StoredTensor& stored);

// The dimension of a head, by the length of the first layer's norm: for a config whose head_dim may be other layers'.
// NOT_FOUND or INVALID_ARGUMENT naming the tensor.
absl::StatusOr<int32_t> HeadDimOfNorm(const ModelConfig& config, CheckpointFiles& files);

// The tensors of config.gdn_layers, in that order. Weights stand below one of the family's prefixes. Names the tensor,
// what was found and what was expected: NOT_FOUND where one is missing; INVALID_ARGUMENT for another shape or dtype,
// for a tensor of the family's module that is not known (a conv1d.bias, what belongs to another format of quantised
// weights) and for one in a layer that the config calls full attention; where such layers have the module too, for
// their A_log alone.
absl::StatusOr<std::vector<LayerTensors>> FindLayerTensors(const ModelConfig& config, CheckpointFiles& files);

}  // namespace gdn
