// A checkpoint on the disk: what its config says about the Gated DeltaNet layers, and the tensors of these layers.
//
// A checkpoint is a Hugging Face folder: config.json, and model.safetensors or the shards that
// model.safetensors.index.json names. Or it is a GGUF file, or the first file of a split one. Only tensors of the Gated
// DeltaNet layers are read.
// Thread safety: constant once opened. Ownership: owns the mapped files, which the tensors point into.
//
//   GDN_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint("/models/Qwen3-Next-80B-A3B"));
//   GDN_RETURN_IF_ERROR(ValidateLayerSpec(checkpoint.config.spec));
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/files/safetensors.h"
#include "server/checkpoint/gguf_file.h"
#include "server/checkpoint/layer_tensors.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

// The files of a checkpoint, mapped.
using CheckpointStorage = std::variant<std::map<std::string, SafetensorsFile>, GgufFile>;

struct Checkpoint {
  ModelConfig config;
  std::vector<LayerTensors> layers;  // the layers of config.gdn_layers, in that order
  CheckpointStorage files;           // the tensors point into these files
};

// Maps the files of `path`: a folder, or a GGUF file with any name. Reads and checks the config and the tensors' names,
// dtypes and shapes, but not all weights. Errors are INVALID_ARGUMENT, NOT_FOUND or DATA_LOSS. They name the file,
// field or tensor, what was found and what was expected.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path);

}  // namespace gdn
