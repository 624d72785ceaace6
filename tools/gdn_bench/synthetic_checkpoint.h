// Writes a checkpoint folder for a measurement: real dimensions, random weights.
//
// Thread safety: a free function that writes to the caller's folder.
//
//   GDN_RETURN_IF_ERROR(WriteSyntheticCheckpoint(BenchLayerDims(), /*layers=*/4, folder.path()));
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/layer_dims.h"

namespace gdn::bench {

// Writes model.safetensors and config.json to `folder`, which must exist: Gated DeltaNet layers of model type
// qwen3_5_text with small BF16 weights, the same on every run. Neighbouring layers have different weights. Errors of
// WriteOutputFile.
absl::Status WriteSyntheticCheckpoint(const LayerDims& dims, int layers, const std::string& folder);

}  // namespace gdn::bench
