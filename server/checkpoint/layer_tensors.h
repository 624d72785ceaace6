// The tensors of a checkpoint's Gated DeltaNet layers: their names, their shapes, and where they lie.
//
// Thread safety: free functions. Ownership: views point into the CheckpointFiles they came from.
//
//   GDN_ASSIGN_OR_RETURN(std::vector<LayerTensors> layers, FindLayerTensors(config, files));
//   const StoredTensor& out = layers[0].tensors.at(LayerTensor::kOut);
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint_files.h"
#include "server/checkpoint/model_config.h"
#include "server/checkpoint/stored_tensor.h"

namespace gdn {

struct LayerTensors {
  int32_t layer = 0;
  std::map<LayerTensor, StoredTensor> tensors;
};

// What a tensor's shape is in a layer of `dims`; the rows of separate convolutions are only known together, and -1.
std::vector<int64_t> LayerTensorShape(LayerTensor tensor, const LayerDims& dims);

// The tensors of config.gdn_layers, in that order. Weights may stand below `model.` or `model.language_model.`. Names
// the tensor, what was found and what was expected: NOT_FOUND where one is missing; INVALID_ARGUMENT for another shape
// or dtype, for a tensor of linear_attn that is not known (a conv1d.bias, what belongs to another format of quantised
// weights) and for one in a layer that the config calls full attention.
absl::StatusOr<std::vector<LayerTensors>> FindLayerTensors(const ModelConfig& config, CheckpointFiles& files);

}  // namespace gdn
