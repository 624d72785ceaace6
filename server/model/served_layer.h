// A checkpoint's layer in the served form, on the host: what differs between families' files is undone here, and only
// here.
//
// Parts that are stored apart are joined; value heads in tiled order are grouped; what multiplies the normalised output
// (1 + w, the output gate's scale) goes into the norm's weight; vectors are widened to float32, and so is what is
// quantised: a matrix of F8_E4M3 takes four times its bytes.
// Thread safety: a free function. Ownership: a matrix that needs no change points into the checkpoint's files, another
// one owns its bytes.
//
//   const ServedLayer served = ServeLayer(config.spec, checkpoint.layers[0]);
//   served.in_qkv.data();  // [C, D], of in_qkv.dtype
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/layer_spec.h"
#include "server/checkpoint/layer_tensors.h"

namespace gdn {

struct ServedMatrix {
  DType dtype = DType::kF32;
  int64_t rows = 0;  // 0: the layout has no such matrix
  int64_t cols = 0;
  std::string_view in_file;  // its bytes, unless `made` has them
  std::string made = {};

  std::string_view data() const { return made.empty() ? in_file : std::string_view(made); }
};

// As LayerWeights has them, of ServedForm(spec).
struct ServedLayer {
  ServedMatrix in_qkv, in_z, in_b, in_a, z_up, a_up, out;
  std::vector<float> conv_weight, a_log, dt_bias, norm_weight;
};

// `layer` has the tensors of LayerTensorsOf(spec), of the shapes that follow from it.
ServedLayer ServeLayer(const LayerSpec& spec, const LayerTensors& layer);

}  // namespace gdn
