// Digests of a checkpoint's Gated DeltaNet layers, as they are in its files: before slicing, merging and quantising.
//
// A model's fingerprint is made of its layers' digests, so each weight is hashed once.
// Thread safety: free functions and plain values.
//
//   const ModelDigests digests = DigestModel(config, layers, {.adapter = nullptr, .quantized = false});
//   digests.fingerprint;         // of the model
//   digests.layers.at(0).xxh3;   // of its first Gated DeltaNet layer
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/checkpoint/layer_tensors.h"
#include "server/checkpoint/lora_adapter.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

// Digest of one Gated DeltaNet layer as it is in the files. The message LayerDigest (proto/gdn/v1/info.proto) says
// exactly what is hashed.
struct LayerDigest {
  int32_t layer = 0;
  std::string format;         // format of the matrices in the files: "BF16", "F8_E4M3", "GGUF Q4_K+Q6_K"
  std::string vector_format;  // format of the other tensors, in the same form
  std::string xxh3;           // XXH3-128, 32 hexadecimal digits
  bool has_adapter = false;   // an adapter is merged into the layer; `xxh3` is without it

  friend bool operator==(const LayerDigest&, const LayerDigest&) = default;
};

struct ModelDigests {
  std::string fingerprint;           // 32 hexadecimal digits
  std::vector<std::string> tensors;  // names of the tensors that a layer's digest covers, in its order
  std::vector<LayerDigest> layers;   // ascending
};

struct DigestOptions {
  const LoraAdapter* adapter = nullptr;  // null: none
  bool quantized = false;                // some matrix is quantised when it is loaded
  bool gguf = false;                     // the tensors are of a GGUF file, with its names and orders
};

// The fingerprint is equal for equal numerics, however the checkpoint is cut into files. It covers the config as far as
// the layers depend on it; the name, format, shape and bytes of each tensor of `layers` and of an adapter's pairs for
// them; and options.quantized. It does not cover names above the layer, other layers, the file layout or the folder.
// Reads every weight once, on all processors. `layers` must not be empty; they are as read, not merged or sliced.
ModelDigests DigestModel(const ModelConfig& config, const std::vector<LayerTensors>& layers,
                         const DigestOptions& options);

}  // namespace gdn
