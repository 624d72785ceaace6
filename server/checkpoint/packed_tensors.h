// Matrices of a safetensors checkpoint that compressed-tensors or ModelOpt has packed. Finds the tensors that make up a
// matrix, and checks them against one another and against the config, without reading their weights.
//
//   FP8    weight F8_E4M3 [N, M], weight_scale for all, a row, or each 128 x 128 weights
//   INT8   weight I8 [N, M], weight_scale for all or a row
//   INT4   weight_packed I32 [N, M / 8], weight_scale [N, groups], weight_shape I64 [2], and weight_zero_point I32
//          [N / 8, groups] if it is asymmetric
//   NVFP4  weight_packed U8 [N, M / 2], weight_scale F8_E4M3 [N, M / 16], weight_global_scale F32 that divides; or
//          ModelOpt's weight U8, weight_scale, weight_scale_2 F32 that multiplies
// Scales of activations (input_scale, input_zero_point, input_global_scale) are ignored, because activations are not
// quantised here.
// Thread safety: free functions. Ownership: views point into the CheckpointFiles.
//   GDN_ASSIGN_OR_RETURN(auto packed, FindPackedTensor("model.layers.0.linear_attn.out_proj.weight", shape, config,
//                                                      files));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint_files.h"
#include "server/checkpoint/quantization_config.h"
#include "server/checkpoint/stored_tensor.h"

namespace gdn {

struct PackedTensor {
  StoredTensor tensor;             // has `packed`, except FP8 in blocks, which kernels read as stored
  std::vector<std::string> names;  // the tensors of the matrix, and those beside it that are ignored
};

// Returns the matrix `name` ("X.weight") with the layer's `shape`, or nullopt if it is not packed or not there.
// INVALID_ARGUMENT or NOT_FOUND names the tensor that is missing, has another dtype or shape, or contradicts the
// config.
absl::StatusOr<std::optional<PackedTensor>> FindPackedTensor(const std::string& name, const std::vector<int64_t>& shape,
                                                             const QuantizationConfig& config, CheckpointFiles& files);

}  // namespace gdn
