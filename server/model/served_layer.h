// A checkpoint's layer in the served form, on the host: what differs between families' files is undone here, and only
// here.
//
// Parts that are stored apart are joined; value heads in tiled order are grouped; what multiplies the normalised output
// (1 + w, the output gate's scale) goes into the norm's weight; vectors are widened to float32. Quantised matrices stay
// quantised, and are put into order by whole rows and whole blocks, where the backend takes them; else they are widened
// to float32.
// Thread safety: a free function. Ownership: a matrix that needs no change points into the checkpoint's files, another
// one owns its bytes.
//
//   GDN_ASSIGN_OR_RETURN(const ServedLayer served, ServeLayer(config.spec, checkpoint.layers[0], options));
//   served.in_qkv.data();  // [C, D], of in_qkv.format
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/layer_spec.h"
#include "base/weight_format.h"
#include "server/checkpoint/layer_tensors.h"

namespace gdn {

struct ServedMatrix {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;  // 0: the layout has no such matrix
  int64_t cols = 0;
  std::string_view in_file;  // its bytes, unless `made` has them
  std::string made = {};
  std::vector<float> scales = {};  // of kF8E4M3
  bool widened = false;            // from a quantised format to float32

  std::string_view data() const { return made.empty() ? in_file : std::string_view(made); }
  int64_t row_bytes() const { return RowBytes(format, cols); }
};

// As LayerWeights has them, of ServedForm(spec).
struct ServedLayer {
  ServedMatrix in_qkv, in_z, in_b, in_a, z_up, a_up, out;
  // Out's columns are as the file has them, in tiled order: a block of its format spans value heads.
  bool tiled_out = false;
  bool quantized = false;  // some matrix was, here
  std::vector<float> conv_weight, a_log, dt_bias, norm_weight;
};

struct ServeLayerOptions {
  // Whether the backend's projections take weights of a format; by default plain ones alone.
  std::function<bool(WeightFormat)> takes = [](WeightFormat format) { return IsPlain(format); };
  // Quantise in_qkv, in_z and out to Q8_0 where they are plain; the others are small, or move the decay.
  bool quantize_q8_0 = false;
};

// `layer` has the tensors of LayerTensorsOf(spec), of the shapes that follow from it. INVALID_ARGUMENT where a matrix
// cannot be quantised: its rows are no whole blocks, or a weight is not finite.
absl::StatusOr<ServedLayer> ServeLayer(const LayerSpec& spec, const LayerTensors& layer,
                                       const ServeLayerOptions& options = {});

}  // namespace gdn
