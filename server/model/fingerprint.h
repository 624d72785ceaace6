// What a model is, in 32 hexadecimal digits: equal for equal numerics, however the checkpoint is cut into files.
//
// Covers the config as far as the layers depend on it and every Gated DeltaNet tensor's name, dtype, shape and bytes;
// not the names above the layer, the other layers, the file layout or the folder.
// Thread safety: a free function. It reads every weight once, on all processors.
//
//   std::string fingerprint = ModelFingerprint(config, layers);
#pragma once

#include <string>

#include "absl/types/span.h"
#include "server/model/layer_tensors.h"
#include "server/model/model_config.h"

namespace gdn {

std::string ModelFingerprint(const ModelConfig& config, absl::Span<const LayerTensors> layers);

}  // namespace gdn
