// Compares a program's own weights with those of a server, by the digests of layers in v1::Model.
//
// A digest covers a layer's tensors as the server's checkpoint has them (v1::LayerDigest). Own weights of another dtype
// cannot be compared, even if their values are equal, nor can weights that the server has from a GGUF file.
// Thread safety: free functions. Ownership: none; views must live until the call returns.
//
//   GDN_ASSIGN_OR_RETURN(const v1::Model model, client.GetModel("models/qwen"));
//   GDN_ASSIGN_OR_RETURN(const LayerMatch match, CompareLayer(model, layer, {{"A_log", "F32", {32}, a_log}, ...}));
//   if (match != LayerMatch::kEqual) ...
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gdn/v1/info.pb.h"

namespace gdn {

struct OwnTensor {
  std::string_view name;       // below the layer's module, as in Model.digest_tensors: "out_proj.weight"
  std::string_view format;     // "F32", "F16", "BF16" or "F8_E4M3"
  std::vector<int64_t> shape;  // dimensions as v1::LayerDigest says: [rows, columns], [channels, 1, W] or [elements]
  std::string_view data;       // the elements, row-major and little-endian
};

enum class LayerMatch {
  kEqual,
  kDifferent,
  kNotComparable,  // the formats differ, or the server has merged an adapter: the weights may be equal or not
};

// Compares the tensors of one layer with the digest of the server's. The tensors may have any order. An F8_E4M3 matrix
// needs its scales, under its name with "_scale_inv" at the end. Other tensors may be among them.
// NOT_FOUND if the model has no digest of the layer, because the server does not serve it or is of version 0.1.0.
// INVALID_ARGUMENT if a tensor of the digest is missing; the message names it.
absl::StatusOr<LayerMatch> CompareLayer(const v1::Model& model, int32_t layer, absl::Span<const OwnTensor> tensors);

}  // namespace gdn
