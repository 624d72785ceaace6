// The tensors of a checkpoint's Gated DeltaNet layers: their names, shapes and bytes.
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

// The layer and the tensor in a name "{prefix}{layer}.{module}.{tensor}". `tensor` is borrowed from the name.
struct LayerTensorPlace {
  int32_t layer = 0;
  std::string_view tensor;
};

// Returns the parts of a tensor's name; nullopt if it does not begin with `prefix` or is not below the family's module.
// The result points into `name`.
std::optional<LayerTensorPlace> PlaceOf(std::string_view name, std::string_view prefix, const ModelFamily& family);

struct LayerTensors {
  int32_t layer = 0;
  std::map<LayerTensor, StoredTensor> tensors;
};

// A layer with tensors that were changed after they were read. Other tensors still point into the checkpoint's files.
struct MadeLayer {
  LayerTensors tensors;
  std::deque<std::string> made;  // the bytes of changed tensors, which point into these strings

  bool HasMade(const char* data) const;  // true if `data` points into `made`
};

// Consecutive rows of a tensor: `each` rows for every key head or value head, or `each` rows that belong to no head.
struct HeadRows {
  enum Per : uint8_t { kKeyHead, kValueHead, kAll } per;
  int64_t each;
};
// Returns the rows of a tensor from first to last; for the out-projection, its columns. Empty for separate
// convolutions.
std::vector<HeadRows> LayerTensorRows(LayerTensor tensor, const LayerSpec& spec);

// Returns the shape that a tensor must have, outermost dimension first. For separate convolutions the rows may be known
// only in sum, and are then -1.
std::vector<int64_t> LayerTensorShape(LayerTensor tensor, const LayerSpec& spec);

// Gives `stored` the shape of LayerTensorShape if it differs only in dimensions of size 1. For vectors and kernels of
// layers with decays by channel. With `long_a_log`, also cuts off the elements of A_log behind its heads. Leaves all
// other tensors as they are; the caller checks the shape.
void DropSpareDimensions(LayerTensor tensor, const LayerSpec& spec, bool long_a_log, StoredTensor& stored);

// Returns the dimension of a head: the length of the first Gated DeltaNet layer's norm weight. Used if
// config.head_dim_by_norm. Errors are NOT_FOUND or INVALID_ARGUMENT and name the tensor, or those of the file.
absl::StatusOr<int32_t> HeadDimOfNorm(const ModelConfig& config, CheckpointFiles& files);

// Returns the tensors of config.gdn_layers, in that order. The weights must be below one of the family's prefixes.
// Errors name the tensor, what was found and what was expected. NOT_FOUND if a tensor is missing. INVALID_ARGUMENT for
// another shape or dtype, and for an unknown tensor of the family's module (a conv1d.bias, a tensor of another format
// of quantised weights). INVALID_ARGUMENT also for a tensor of the module in a layer that the config calls full
// attention. If such layers have the module too, only their A_log is refused.
absl::StatusOr<std::vector<LayerTensors>> FindLayerTensors(const ModelConfig& config, CheckpointFiles& files);

}  // namespace gdn
