// A checkpoint as it lies on the disk: what its config says of the Gated DeltaNet layers, and their tensors.
//
// A Hugging Face folder: config.json and model.safetensors, or the shards named by model.safetensors.index.json. Or a
// file in GGUF, or the first of a split. Of the tensors only those of the layers are read.
// Thread safety: constant once opened. Ownership: owns the mapped files, which the tensors point into.
//
//   GDN_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint("/models/Qwen3-Next-80B-A3B"));
//   for (const LayerSpecLine& line : DescribeLayerSpec(checkpoint.config.spec)) ..
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/safetensors.h"
#include "server/checkpoint/gguf_file.h"
#include "server/checkpoint/layer_tensors.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

// The files of a checkpoint, mapped.
using CheckpointStorage = std::variant<std::vector<SafetensorsFile>, GgufFile>;

struct Checkpoint {
  ModelConfig config;
  std::vector<LayerTensors> layers;  // of config.gdn_layers
  CheckpointStorage files;           // that the tensors point into
};

// INVALID_ARGUMENT, NOT_FOUND or DATA_LOSS naming the file, field or tensor, what was found and what was expected.
// `path` is a folder, or a file in GGUF, whatever its name.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path);

}  // namespace gdn
