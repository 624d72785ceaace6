// A LoRA adapter as PEFT saves it, merged into the projections of Gated DeltaNet layers: W + scale B A.
//
// An adapter is a folder with adapter_config.json and adapter_model.safetensors. scale is lora_alpha / r, or lora_alpha
// / sqrt(r) if use_rslora is set. r is the number of A's rows; rank_pattern may give some modules another r. Tensors
// for other modules are ignored. A tensor for the layers that is not in a pair of A and B of a projection is refused,
// and the error names it. Merged weights are the float32 values nearest to W + scale B A; the sums are in double.
// Thread safety: constant once opened. Ownership: owns the mapped file, which its factors point into.
// Source of the format: https://huggingface.co/docs/peft/developer_guides/checkpoint
//
//   GDN_ASSIGN_OR_RETURN(const LoraAdapter adapter, OpenLoraAdapter("/adapters/style", checkpoint.config));
//   const MadeLayer merged = MergeAdapter(adapter, checkpoint.layers[0]);
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "base/files/safetensors.h"
#include "base/tensor_view.h"
#include "server/checkpoint/layer_tensors.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

struct LoraPair {
  TensorView a;  // [r, in]
  TensorView b;  // [out, r]
  double scale = 0.0;
  std::string a_name, b_name;  // names of the two tensors in the file
};

struct LoraAdapter {
  std::map<int32_t, std::map<LayerTensor, LoraPair>> layers;  // only layers with pairs
  SafetensorsFile file;
};

// Reads the factors of the layers. Errors are INVALID_ARGUMENT, NOT_FOUND or DATA_LOSS, and name the file, field or
// tensor, what was found and what was expected. Refused are kinds of adapters that cannot be merged (DoRA,
// fan_in_fan_out, PiSSA and others) and adapters for a model in GGUF. So are tensors that do not fit the config's
// layers, and values that are not finite.
absl::StatusOr<LoraAdapter> OpenLoraAdapter(const std::string& folder, const ModelConfig& config);

// Returns `layer` with its pairs merged. A merged matrix is F32, also if it was packed or quantised, and belongs to the
// result. The other tensors still point into the checkpoint's files. Nothing points into the adapter.
MadeLayer MergeAdapter(const LoraAdapter& adapter, const LayerTensors& layer);

}  // namespace gdn
