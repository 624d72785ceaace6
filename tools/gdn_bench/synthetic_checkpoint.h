// A checkpoint folder with one Gated DeltaNet layer, for serving without a real model.
//
// Thread safety: a free function.
//
//   GDN_RETURN_IF_ERROR(WriteSyntheticCheckpoint(BenchLayerDims(), folder));  // config.json, model.safetensors
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/layer_dims.h"

namespace gdn::bench {

// Model type qwen3_5_text, BF16 weights, all zero: for a backend that computes nothing. UNAVAILABLE where a file cannot
// be written.
absl::Status WriteSyntheticCheckpoint(const LayerDims& dims, const std::string& folder);

}  // namespace gdn::bench
