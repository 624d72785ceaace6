// A LoRA adapter as PEFT saves it, merged into the projections of Gated DeltaNet layers: W + scale B A.
//
// A folder with adapter_config.json and adapter_model.safetensors. scale is lora_alpha / r, or lora_alpha / sqrt(r)
// where use_rslora says so; r is the length of A, which rank_pattern may make another one for some modules. What the
// adapter has for other modules is passed over; what it has for the layers and is no pair of A and B for a projection
// is refused by name. Merged weights are the float32 nearest to W + scale B A, whose sums are in double.
// Thread safety: constant once opened. Ownership: owns the mapped file, which its factors point into.
// Source of the format: https://huggingface.co/docs/peft/developer_guides/checkpoint
//
//   GDN_ASSIGN_OR_RETURN(const LoraAdapter adapter, OpenLoraAdapter("/adapters/style", checkpoint.config));
//   const MergedLayer merged = MergeAdapter(adapter, checkpoint.layers[0]);
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "base/safetensors.h"
#include "base/tensor_view.h"
#include "server/checkpoint/layer_tensors.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

struct LoraPair {
  TensorView a;  // [r, in]
  TensorView b;  // [out, r]
  double scale = 0.0;
};

struct LoraAdapter {
  std::map<int32_t, std::map<LayerTensor, LoraPair>>
      layers;  // of the model's layers; those without pairs are not there
  SafetensorsFile file;
};

// INVALID_ARGUMENT, NOT_FOUND or DATA_LOSS naming the file, field or tensor, what was found and what was expected: for
// a kind of adapter that is not merged (DoRA, fan_in_fan_out, PiSSA and others), for tensors of another shape than the
// config's layers have, and for values that are not finite. Reads the layers' factors.
absl::StatusOr<LoraAdapter> OpenLoraAdapter(const std::string& folder, const ModelConfig& config);

struct MergedLayer {
  LayerTensors tensors;
  std::deque<std::string> made;  // the bytes of those that are not in a file
};

// `layer` with its pairs merged, in F32, and their packed or quantised matrices widened for it; the others as they are.
MergedLayer MergeAdapter(const LoraAdapter& adapter, const LayerTensors& layer);

}  // namespace gdn
