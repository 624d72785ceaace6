// A checkpoint as it lies on the disk: what its config says of the Gated DeltaNet layers, and their tensors.
//
// Reads config.json and model.safetensors, or the shards named by model.safetensors.index.json; of the tensors only
// those of the layers.
// Thread safety: constant once opened. Ownership: owns the mapped files, which the tensors point into.
//
//   GDN_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint("/models/Qwen3-Next-80B-A3B"));
//   for (const LayerSpecLine& line : DescribeLayerSpec(checkpoint.config.spec)) ..
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/safetensors.h"
#include "server/checkpoint/layer_tensors.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

struct Checkpoint {
  ModelConfig config;
  std::vector<LayerTensors> layers;  // of config.gdn_layers
  std::vector<SafetensorsFile> files;
};

// INVALID_ARGUMENT, NOT_FOUND or DATA_LOSS naming the file, field or tensor, what was found and what was expected.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& directory);

}  // namespace gdn
