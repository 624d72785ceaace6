// A checkpoint as the service sees it: its description and the weights of each GDN layer.
//
// Thread safety: constant after the server starts. Ownership: weights point into memory that the loader keeps.
//
//   const ServedModel& model = catalog.at("qwen");
//   const LayerWeights& weights = model.layers.at(0);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/head_slice.h"
#include "base/layer_dims.h"
#include "kernels/layer/layer_weights.h"
#include "server/model/model_digests.h"

namespace gdn {

struct ServedModel {
  std::string name;    // without "models/"
  std::string family;  // the checkpoint's model_type
  LayerDims dims;
  int32_t num_layers = 0;
  DType weight_dtype = DType::kF32;
  std::vector<std::string> weight_formats = {};  // formats of the projections; the one with the most bytes first
  int64_t weight_bytes = 0;                      // bytes of all weights on each device
  std::string fingerprint;
  ModelSlice slice = {};  // which of the model's heads are served; none: all
  // Weights on the first device, by decoder layer index; the served GDN layers only.
  std::map<int32_t, LayerWeights> layers;
  std::vector<std::map<int32_t, LayerWeights>> layers_elsewhere = {};  // the same on devices 1, 2, .., in order
  // All GDN layers of the model, also those that are not served (--layers), ascending.
  std::vector<int32_t> all_gdn_layers = {};
  std::vector<LayerDigest> layer_digests = {};   // digests of the served layers, ascending
  std::vector<std::string> digest_tensors = {};  // names of the tensors that a digest covers, in its order

  const std::map<int32_t, LayerWeights>& LayersOn(int32_t device) const {
    return device == 0 ? layers : layers_elsewhere[static_cast<size_t>(device - 1)];
  }
};

using ModelCatalog = std::map<std::string, ServedModel>;

}  // namespace gdn
